"""`pdtrace doctor` as a whole, and its parts that look at this environment and at engines."""

import json
from collections.abc import Callable
from typing import Any

import engine_imports  # noqa: F401  # first of all
import pytest

from pdtrace.analysis.collect import Collector
from pdtrace.cli.main import main
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings
from pdtrace.connector.compat import handshake_question, installed_vllm
from pdtrace.connector.doctor import Finding, Verdict, clock_findings, settings_findings
from pdtrace.connector.doctor_pair import pair_findings
from pdtrace.connector.doctor_vllm import hook_findings, plugin_findings
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.clock import clock_id

CHECKED = "would pass NIXL's check"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without what the machine's own environment says about tracing."""
    import os

    for name in list(os.environ):
        if name.startswith(("OTEL_", "PDTRACE", "VLLM_PLUGINS")):
            monkeypatch.delenv(name)
    return monkeypatch


def run(*argv: str) -> int:
    """Exit status of the command."""
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["doctor", *argv]))
    return int(ended.value.code or 0)


def test_all_well(
    environment: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0, no problem in the object, and the table says so too."""
    with Collector(tmp_path / "store", "127.0.0.1", 0, 0) as collector:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.grpc_address}")
        assert run("--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert run() == 0
    assert told["problems"] == 0
    assert {finding["topic"] for finding in told["findings"]} == {
        "installed", "plugin", "settings", "hooks", "spans", "endpoint", "clock",
    }  # fmt: skip
    table = capsys.readouterr().out
    assert "takes spans" in table and table.rstrip().endswith("all well")


def test_a_problem_is_status_1(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is configured here."""
    assert run("--json") == 1
    told = json.loads(capsys.readouterr().out)
    problems = [f["value"] for f in told["findings"] if f["verdict"] == "problem"]
    assert problems == [
        "no: neither PDTRACE=1 nor an OTLP endpoint is set here",
        "no: nothing is traced",
    ]
    assert told["problems"] == 2


@pytest.mark.parametrize(
    "argv", [["--prefill", "http://h:1"], ["--decode-side", "h:1"], ["--no-such"]]
)
def test_a_wrong_call_is_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Options that belong together, and one that there is not."""
    assert run(*argv) == 2
    assert capsys.readouterr().out == ""


def test_hook_points_and_spans_of_the_installed_vllm() -> None:
    """Everything is there in both modes, and each mode names its own spans."""
    found = list(hook_findings())
    assert {finding.verdict for finding in found} == {Verdict.OK}
    spans = {
        finding.item: finding.value.split(", ") for finding in found if finding.topic == "spans"
    }
    assert sc.SPAN_WRITE_COMPLETE in spans["push"] and sc.SPAN_WRITE_COMPLETE not in spans["pull"]
    assert sc.SPAN_READ_COMPLETE in spans["pull"] and sc.SPAN_READ_COMPLETE not in spans["push"]
    assert found[0].value == f"vLLM {installed_vllm()} is one of those checked"


def test_a_hook_point_that_is_gone_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the spans that are therefore absent."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import (
        NixlPullConnectorWorker,
    )

    monkeypatch.delattr(NixlPullConnectorWorker, "_read_blocks_for_req")
    found = [f for f in hook_findings() if f.verdict is Verdict.PROBLEM]
    assert [finding.item for finding in found] == ["pull", "pull", "pull, absent"]
    assert found[0].value == "NixlPullConnectorWorker._read_blocks_for_req does not exist"
    assert found[2].value == "pd.handshake, pd.read_complete, pd.read_submit"


@pytest.mark.parametrize(
    ("variables", "problems"),
    [
        ({"PDTRACE": "1"}, []),
        ({"PDTRACE": "1", "VLLM_PLUGINS": "a, pdtrace"}, []),
        ({"PDTRACE": "1", "VLLM_PLUGINS": "a,b"}, ["VLLM_PLUGINS"]),
        ({"PDTRACE": "1", "VLLM_PLUGINS": ""}, ["VLLM_PLUGINS"]),
        ({"PDTRACE": "0", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}, ["active"]),
        ({}, ["active"]),
    ],
)
def test_whether_the_plugin_is_loaded_and_active(
    variables: dict[str, str], problems: list[str]
) -> None:
    """As vLLM reads its variable, and as the plugin reads its own."""
    found = list(plugin_findings(variables))
    assert [f.item for f in found if f.verdict is Verdict.PROBLEM] == problems


def test_settings_and_clock() -> None:
    """What differs from the defaults, what is wrong, and the boot that the clock belongs to."""
    assert list(settings_findings({"PDTRACE_SAMPLE_RATIO": "0.5"})) == [
        Finding("settings", "PDTRACE_SAMPLE_RATIO", "0.5", Verdict.OK)
    ]
    (wrong,) = settings_findings({"PDTRACE_SAMPLE_RATIO": "much"})
    assert wrong.verdict is Verdict.PROBLEM and "'much'" in wrong.value
    (default,) = settings_findings({})
    assert default.value == "all at their defaults"
    assert list(clock_findings())[-1] == Finding("clock", "boot id", clock_id())


def test_the_question_that_a_side_channel_understands() -> None:
    """It got a second rank in 0.26; the wrong one would end an engine's listener."""
    assert handshake_question("0.25.1") == (b"get_meta_msg", 0)
    assert handshake_question("0.26.0") == (b"get_meta_msg", 0, 0)


Engines = Callable[[str, str], str]


@pytest.fixture
def engines(answering: Callable[[int, bytes], str]) -> Engines:
    """Starts servers that answer as an engine of some version and model would; gives the URL."""

    def start(version: str, model: str) -> str:
        answer = {"version": version, "data": [{"id": "served", "root": model}]}
        return "http://" + answering(200, json.dumps(answer).encode())

    return start


@pytest.mark.parametrize(
    ("decode", "value", "verdict"),
    [
        (("0.32.0", "m"), "version and model are equal", Verdict.UNKNOWN),
        (("0.31.0", "m"), "no: version 0.32.0 against 0.31.0", Verdict.PROBLEM),
        (("0.32.0", "other"), "no: model m against other", Verdict.PROBLEM),
    ],
)
def test_what_two_engines_tell_over_http(
    engines: Engines, decode: tuple[str, str], value: str, verdict: Verdict
) -> None:
    """Enough for a no; for a yes their side channels have to be asked."""
    found = list(pair_findings(engines("0.32.0", "m"), engines(*decode)))
    assert [finding.verdict for finding in found[:2]] == [Verdict.OK] * 2
    assert (found[2].item, found[2].verdict) == (CHECKED, verdict)
    assert found[2].value.startswith(value)


def test_an_engine_that_is_not_there(engines: Engines) -> None:
    """Is a problem, and what the pair would do is not known."""
    found = list(pair_findings(engines("0.32.0", "m"), "http://127.0.0.1:9"))
    verdicts = [finding.verdict for finding in found]
    assert verdicts == [Verdict.OK, Verdict.PROBLEM, Verdict.UNKNOWN]


@pytest.mark.e2e
def test_real_engines_would_pass_and_work_afterwards(
    tmp_path: Any, engine_server: EngineServer
) -> None:
    """Both say equal hashes; asking twice shows that the listeners survive the question."""
    settings = ClusterSettings(mode="push", traced=False, router=False, run_dir=tmp_path)
    with Cluster(settings, engine_server) as cluster:
        sides = [f"127.0.0.1:{e.side_port}" for e in (cluster.prefills[0], cluster.decodes[0])]
        urls = [cluster.prefills[0].url, cluster.decodes[0].url]
        for _ in range(2):
            assert list(pair_findings(*urls, *sides))[-1] == Finding(
                "pair", CHECKED, "yes: equal compatibility hashes", Verdict.OK
            )
