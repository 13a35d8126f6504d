"""The entry point that traces an unchanged configuration, with vLLM's real factory."""

import json
import logging
import os
import subprocess
import sys

import pytest

from pdtrace.connector import plugin
from pdtrace.tracing.settings import ConfigurationError

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}
NAMES = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
FACTORY = """
import json, os, sys
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker
from pdtrace.connector.plugin import register

names, cases = json.loads(sys.argv[1])
untouched, told = dict(KVConnectorFactory._registry), []
for settings in cases:
    os.environ.update(settings)
    register()
    register()
    assert set(KVConnectorFactory._registry) == set(untouched)
    classes = [KVConnectorFactory.get_connector_class_by_name(name) for name in names]
    told.append([[c.__module__, c.__name__, issubclass(c, SupportsHMA)] for c in classes])
    KVConnectorFactory._registry.update(untouched)
    for name in settings:
        del os.environ[name]
told.append([NixlPullConnectorWorker._TRANSFER_MODE, NixlPushConnectorWorker._TRANSFER_MODE])
print("\\n" + json.dumps(told))
"""
TRACED = [
    ["pdtrace.connector.pull", "NixlPullConnector", True],
    ["pdtrace.connector.pull", "NixlPullConnector", True],
    ["pdtrace.connector.push", "NixlPushConnector", True],
]
NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector"
UNTRACED = [[NIXL, name, hma] for _, name, hma in TRACED]


def test_the_engines_factory_leads_to_ours_when_asked() -> None:
    """By the switch or an endpoint; `PDTRACE=0` wins over an endpoint meant for something else.

    Names of classes, hybrid memory support and the mode in the handshake's hash stay vLLM's.
    """
    cases = [{"PDTRACE": "1"}, ENDPOINT, {"PDTRACE": "0", **ENDPOINT}, {}]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PDTRACE" and not name.startswith("OTEL_")
    }
    done = subprocess.run(
        [sys.executable, "-c", FACTORY, json.dumps([NAMES, cases])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    switch, endpoint, off, unset, modes = json.loads(done.stdout.splitlines()[-1])
    assert (switch, endpoint) == (TRACED, TRACED)
    assert (off, unset) == (UNTRACED, UNTRACED)
    assert modes == ["pull", "push"]


def test_an_error_while_registering_is_told_and_does_not_stop_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM ends its start on an exception from a plugin."""

    def fake_import_that_fails(name: str) -> None:
        raise RuntimeError(f"injected for {name}")

    monkeypatch.setenv("PDTRACE", "1")
    monkeypatch.setattr("importlib.import_module", fake_import_that_fails)
    with caplog.at_level(logging.ERROR, "pdtrace"):
        plugin.register()
    (record,) = caplog.records
    assert "the engine is not traced" in record.message
    assert record.exc_info is not None and "injected" in str(record.exc_info[1])


def test_a_wrong_setting_stops_the_engine_before_it_loads_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plugin is the first of ours that vLLM runs."""
    monkeypatch.setenv("PDTRACE", "maybe")
    with pytest.raises(ConfigurationError, match="^PDTRACE is 'maybe', but must be 1 or 0$"):
        plugin.register()
