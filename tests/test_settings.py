"""Settings: what can be said, where, who wins, and that a wrong one is refused in one sentence."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pdtrace.tracing.propagation import TraceContext
from pdtrace.tracing.sampling import Sampler, make_sampler
from pdtrace.tracing.settings import (
    ConfigurationError,
    Settings,
    endpoint_of,
    read_settings,
    variable,
    wanted,
)

ROOT = Path(__file__).parent.parent
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}
NAMES = [known.name for known in fields(Settings)]
EVERYTHING: dict[str, tuple[str, Any]] = {
    "enabled": ("on", True),
    "sample_ratio": ("0.25", 0.25),
    "keep_errors": ("0", False),
    "slow_ms": ("1500", 1500.0),
    "span_limit_s": ("2", 2.0),
    "decode_limit_s": ("3.5", 3.5),
    "hook_error_limit": ("7", 7),
    "buffer_events": ("1e5", 100_000),
    "queue_spans": ("1024", 1024),
    "send_every_s": ("0.5", 0.5),
}
EXTRA = 'kv_connector_extra_config["pdtrace"]'


def test_without_any_setting_the_defaults_hold() -> None:
    """Foreign variables, ones of Kubernetes and empty ones say nothing."""
    environment = {"PDTRACE_PORT": "tcp://10.0.0.1:4317", "PDTRACE_SLOW_MS": "", "HOME": "/"}
    assert read_settings(environment) == Settings()


def test_every_setting_can_be_given_in_both_places() -> None:
    """As text in the environment, as text or as JSON's own types in the connector's object."""
    expected = Settings(**{name: value for name, (_, value) in EVERYTHING.items()})
    environment = {variable(name): text for name, (text, _) in EVERYTHING.items()}
    assert list(EVERYTHING) == NAMES
    assert read_settings(environment) == expected
    assert read_settings({}, {name: text for name, (text, _) in EVERYTHING.items()}) == expected
    assert read_settings({}, {name: value for name, (_, value) in EVERYTHING.items()}) == expected


def test_the_connectors_object_wins_over_the_environment() -> None:
    """Key by key: it belongs to one engine, the environment to a fleet."""
    environment = {"PDTRACE_SLOW_MS": "100", "PDTRACE_QUEUE_SPANS": "2048"}
    assert read_settings(environment, {"slow_ms": 5}) == Settings(slow_ms=5.0, queue_spans=2048)


@pytest.mark.parametrize(
    ("environment", "extra", "sentence"),
    [
        ({"PDTRACE": "maybe"}, None, "PDTRACE is 'maybe', but must be 1 or 0"),
        (
            {"PDTRACE_SAMPLE_RATIO": "1.5"},
            None,
            "PDTRACE_SAMPLE_RATIO is '1.5', but must be a number from 0 to 1",
        ),
        (
            {"PDTRACE_SAMPLE_RATIO": "nan"},
            None,
            "PDTRACE_SAMPLE_RATIO is 'nan', but must be a number from 0 to 1",
        ),
        (
            {"PDTRACE_SAMPLE_RATE": "1"},
            None,
            "PDTRACE_SAMPLE_RATE is not a setting; PDTRACE_SAMPLE_RATIO is one",
        ),
        ({}, {"slow_ms": True}, f"{EXTRA}['slow_ms'] is True, but must be a number from 0 to"),
        ({}, {"span_limit_s": None}, f"{EXTRA}['span_limit_s'] is None, but must be a number"),
        (
            {},
            {"queue_spans": 1000.5},
            f"{EXTRA}['queue_spans'] is 1000.5, but must be a whole number from 512 to 16777216",
        ),
        ({}, {"sample_rate": 1}, f"{EXTRA} has 'sample_rate', which is not a setting; there are"),
        ({}, "0.5", f"{EXTRA} is '0.5', but must be an object of settings"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(
    environment: dict[str, str], extra: object, sentence: str
) -> None:
    """One sentence says what is wrong and what would be right."""
    with pytest.raises(ConfigurationError) as refused:
        read_settings(environment, extra)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"PDTRACE": ""}, False),
        ({"PDTRACE": "1"}, True),
        ({"PDTRACE": "0"}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"PDTRACE": "", **ENDPOINT}, True),
        ({"PDTRACE": "off", **ENDPOINT}, False),
        ({"OTEL_SDK_DISABLED": "true", **ENDPOINT}, False),
        ({"OTEL_TRACES_EXPORTER": "none", **ENDPOINT}, False),
    ],
)
def test_when_a_process_is_traced(environment: dict[str, str], expected: bool) -> None:
    """The switch decides; without it, an endpoint that is in use does."""
    assert wanted(read_settings(environment), environment) is expected


def test_the_signals_own_endpoint_wins() -> None:
    """As the specification of OTLP exporters has it."""
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4317"}
    assert endpoint_of({**ENDPOINT, **own}) == "http://traces:4317"


@pytest.mark.parametrize(
    ("named", "argument", "expected"),
    [
        ("", "", Sampler(1.0, True)),
        ("always_on", "", Sampler(1.0, False)),
        ("always_off", "", Sampler(0.0, False)),
        ("traceidratio", "0.5", Sampler(0.5, False)),
        ("traceidratio", "", Sampler(1.0, False)),
        ("parentbased_always_on", "0.5", Sampler(1.0, True)),
        ("parentbased_always_off", "", Sampler(0.0, True)),
        ("parentbased_traceidratio", "0.125", Sampler(0.125, True)),
    ],
)
def test_the_standard_samplers(named: str, argument: str, expected: Sampler) -> None:
    """Those that OpenTelemetry specifies; our own ratio wins over them."""
    environment = {"OTEL_TRACES_SAMPLER": named, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert make_sampler(Settings(), environment) == expected
    assert make_sampler(Settings(sample_ratio=0.75), environment) == Sampler(0.75, True)


@pytest.mark.parametrize(
    ("named", "argument", "words"),
    [
        ("jaeger_remote", "", "OTEL_TRACES_SAMPLER is 'jaeger_remote', but must be one of always_"),
        ("traceidratio", "half", "OTEL_TRACES_SAMPLER_ARG is 'half', but must be a number from 0"),
        ("traceidratio", "2", "OTEL_TRACES_SAMPLER_ARG is '2', but must be a number from 0 to 1"),
    ],
)
def test_a_sampler_that_we_have_not_is_refused(named: str, argument: str, words: str) -> None:
    """With its name, unless our own ratio makes it irrelevant."""
    environment = {"OTEL_TRACES_SAMPLER": named, "OTEL_TRACES_SAMPLER_ARG": argument}
    with pytest.raises(ConfigurationError, match=f"^{re.escape(words)}"):
        make_sampler(Settings(), environment)
    assert make_sampler(Settings(sample_ratio=1.0), environment) == Sampler()


def test_a_ratio_of_one_takes_all_and_of_zero_none() -> None:
    """Whatever the id."""
    for trace_id in (1, 2**64 - 1, 2**128 - 1):
        trace = TraceContext(trace_id, 0, True)
        assert Sampler(1.0).decides(trace) and not Sampler(0.0).decides(trace)


def test_every_setting_is_documented_with_its_default() -> None:
    """`docs/settings.md` has one row for each, in order, and no other."""
    rows = re.findall(
        r"^\| `(PDTRACE\w*)` \| `(\w+)` \| (.+?) \|",
        (ROOT / "docs" / "settings.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    words = {"an OTLP endpoint is configured": None, "as `OTEL_TRACES_SAMPLER`": None, "none": None}
    assert [(name, key) for name, key, _ in rows] == [(variable(key), key) for key in NAMES]
    for _, key, default in rows:
        said = words[default] if default in words else float(default)
        assert said == getattr(Settings(), key), key


@pytest.mark.parametrize("name", ["NixlPullConnector", "NixlPushConnector"])
def test_a_wrong_setting_stops_the_construction_of_a_real_connector(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's factory raises our sentence where the engine starts; right settings are taken."""
    from real_connector import make_connector

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    sentence = re.escape(f"{EXTRA}['sample_ratio'] is 2, but must be a number from 0 to 1")
    with pytest.raises(ConfigurationError, match=f"^{sentence}$"):
        make_connector(name, {"sample_ratio": 2})
    connector = make_connector(name, {"sample_ratio": 0.5, "buffer_events": 100})
    recorder = connector._pdtrace.recorder
    assert recorder._telemetry.settings == Settings(sample_ratio=0.5, buffer_events=100)
    assert recorder._telemetry.sampler == Sampler(0.5)
    connector.shutdown()
    assert make_connector(name, {"enabled": False})._pdtrace.recorder is None
