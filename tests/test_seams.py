"""Hook points held against real and changed objects: what is missing is named, the rest works."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import engine_imports  # noqa: F401  # first of all
import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as nixl_connector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import push_scheduler, push_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from pdtrace.connector import attach as attach_module
from pdtrace.connector import compat
from pdtrace.connector.attach import attach
from pdtrace.connector.compat import POINTS, HookPoint, Place, parsed
from pdtrace.connector.pull import PullWorkerHooks
from pdtrace.connector.push import PushWorkerHooks
from pdtrace.connector.seams import Seams
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.provider import Telemetry, make_resource
from pdtrace.tracing.settings import Settings
from pdtrace.tracing.testing import CapturingExporter

WORKERS = {"push": push_worker.NixlPushConnectorWorker, "pull": NixlPullConnectorWorker}
FACADES = {
    "push": nixl_connector.NixlPushConnector,
    "pull": nixl_connector.NixlPullConnector,
}


class Agent:
    """NIXL's agent as far as it is looked at."""

    def get_xfer_descs(self, descs: Any, mem_type: Any = None) -> None:
        """Describe."""

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any) -> None:
        """Prepare."""

    def release_dlist_handle(self, handle: Any) -> None:
        """Release."""

    def make_prepped_xfer(
        self, operation: str, local_xfer_side: Any, local_indices: Any, *more: Any
    ) -> None:
        """Make."""

    def get_xfer_telemetry(self, handle: Any) -> None:
        """Measure."""

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Drain."""
        return {}

    def send_notif(self, remote_agent_name: str, notif_msg: bytes) -> None:
        """Send."""


def worker_side(mode: str, lacking: tuple[str, ...] = ()) -> Any:
    """vLLM's facade and worker of one mode without their constructors; some methods gone."""
    without = {name: None for name in lacking}
    worker: Any = object.__new__(type(WORKERS[mode].__name__, (WORKERS[mode],), without))
    worker.nixl_wrapper, worker._remote_agents, worker.dst_xfer_side_handles = Agent(), {}, {}
    worker._pending_d_registrations, worker.tp_rank = {}, 0
    worker.shutdown = lambda: None
    facade = object.__new__(FACADES[mode])
    facade.connector_worker, facade.connector_scheduler = worker, None
    facade._connector_metadata = NixlConnectorMetadata()
    return facade


def scheduler_side(scheduler: Any) -> Any:
    """vLLM's push facade with some scheduler behind it."""
    facade = object.__new__(nixl_connector.NixlPushConnector)
    facade.connector_worker, facade.connector_scheduler = None, scheduler
    return facade


def test_nothing_is_missing_in_the_installed_vllm() -> None:
    """Both modes, both sides; nothing is said and `pd.config` stays as it is."""
    scheduler = object.__new__(push_scheduler.NixlPushConnectorScheduler)
    scheduler._push_pending_registrations, scheduler._push_registration_deadlines = {}, {}
    facades = [worker_side("push"), scheduler_side(scheduler)]
    for seams in [Seams.of(f, "push") for f in facades] + [Seams.of(worker_side("pull"), "pull")]:
        assert (seams.gaps, seams.config(), seams.absent_spans) == ((), {}, frozenset())


HOOKS: dict[str, Any] = {"push": PushWorkerHooks, "pull": PullWorkerHooks}
MISSING = {
    "push": (
        "_do_start_push_kv",
        [sc.SPAN_HANDSHAKE, sc.SPAN_LEASE, sc.SPAN_MATCH, *sorted([sc.SPAN_WRITE_SUBMIT,
         sc.SPAN_WRITE_COMPLETE])],
    ),
    "pull": (
        "_read_blocks_for_req",
        [sc.SPAN_HANDSHAKE, sc.SPAN_READ_COMPLETE, sc.SPAN_READ_SUBMIT],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(
            mode,
            marks=pytest.mark.covers(
                "missing-hook", mode, on="classes", why="no installed vLLM lacks one"
            ),
        )
        for mode in ("push", "pull")
    ],
)
def test_an_engine_starts_without_a_hook_point_and_says_what_is_absent(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, both lists in `pd.config`, and the other hooks are in place."""
    method, absent = MISSING[mode]
    exporter, told = CapturingExporter(), []

    def fake_open(
        role: str, attributes: dict[str, Any], settings: Settings, shared: bool
    ) -> Telemetry:
        told.append(attributes)
        return Telemetry(make_resource(role, attributes), exporter, settings=settings)

    monkeypatch.setattr(attach_module, "open_provider", fake_open)
    facade = worker_side(mode, lacking=(method,))
    plain = facade.connector_worker._log_failure
    with caplog.at_level(logging.WARNING, "pdtrace"):
        made = attach(facade, vllm_config(), mode, HOOKS[mode])
    assert made.recorder is not None
    try:
        config = json.loads(told[0][sc.CONFIG])
        name = f"{WORKERS[mode].__name__}.{method}"
        assert config["missing_hooks"] == [f"{name} does not exist"]
        assert config["absent_spans"] == absent
        assert [record.getMessage() for record in caplog.records] == [
            f"pdtrace: vLLM {compat.installed_vllm()}: {name} does not exist; "
            f"without it absent: {', '.join(absent)}"
        ]
        assert facade.connector_worker._log_failure != plain
        assert getattr(facade.connector_worker, method) is None
    finally:
        made.recorder.shutdown()


def vllm_config() -> Any:
    """As much of vLLM's configuration as the resource needs."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role="kv_producer", engine_id="e", kv_connector_extra_config=None
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=1, tensor_parallel_size=1, pipeline_parallel_size=1, rank=0
        ),
        model_config=SimpleNamespace(served_model_name="m", model="m"),
    )


def gap_of(point: HookPoint, target: Any, mode: str = "push", **more: Any) -> list[str]:
    """What is said of one point of one object."""
    targets = {point.place: target, **{Place(key): value for key, value in more.items()}}
    found = Seams(mode, targets, "0.32.0").gaps
    return [gap.what for gap in found if gap.point is point]


class Changed:
    """Points that another vLLM may have."""

    def __init__(self, method: str, replacement: Any) -> None:
        setattr(self, method, replacement)


@pytest.mark.parametrize(
    ("replacement", "complaint"),
    [
        (lambda failure_type, req_id, msg="", **more: None, ""),
        (lambda failure_type, req_id, must: None, ""),
        (lambda *args, **more: None, ""),
        (len, "takes (obj), not (failure_type, req_id, …)"),
        (lambda failure_type: None, "takes (failure_type), not (failure_type, req_id, …)"),
        (
            lambda req_id, failure_type: None,
            "takes (req_id, failure_type), not (failure_type, req_id, …)",
        ),
        ("a word", "does not exist"),
    ],
)
def test_an_internal_method_is_known_by_its_leading_parameters(
    replacement: Any, complaint: str
) -> None:
    """More of them do not matter; fewer, other or exchanged ones do."""
    found = gap_of(compat.FAILURE, Changed("_log_failure", replacement))
    assert found == ([f"Changed._log_failure {complaint}"] if complaint else [])


def test_a_public_method_is_known_by_their_number() -> None:
    """vLLM calls it by position, and connectors name its parameters as they like."""
    point = compat.FINISHED
    assert gap_of(point, Changed("request_finished", lambda request, _blocks: None)) == []
    fewer = Changed("request_finished", lambda request: None)
    assert gap_of(point, fewer) == [
        "Changed.request_finished takes (request), not (request, block_ids, …)"
    ]


def test_a_hook_that_reads_what_is_gone_is_not_put_on() -> None:
    """An attribute counts as part of the point."""
    target = Changed("_xfer_blocks_for_req", lambda req_id, meta: None)
    assert gap_of(compat.WRITES_POSTED, target) == [
        "Changed._xfer_blocks_for_req cannot be told without dst_xfer_side_handles, "
        "which does not exist"
    ]


def test_what_is_no_gap_in_a_version_that_never_had_it() -> None:
    """Elder versions have other points; a newer one is held against the whole table."""
    places = {Place.WORKER: object()}

    def looked_for(vllm: str, mode: str) -> set[str]:
        return {gap.point.method for gap in Seams(mode, places, vllm).gaps}

    assert "get_transfer_results" not in looked_for("0.29.1", "push")
    assert "get_finished" in looked_for("0.29.1", "push")
    assert "_ensure_d_handshake" in looked_for("0.24.0+cpu", "push")
    assert "_ensure_d_handshake" not in looked_for("0.27.0", "push")
    assert looked_for("0.20.0", "push") == looked_for("0.20.0", "pull") - {
        "_background_nixl_handshake", "_read_blocks_for_req", "_handle_failed_transfer",
        "_get_new_notifs",
    }  # fmt: skip
    assert looked_for("0.99.0", "push") == looked_for("0.33.0", "push")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.32.0", (0, 32)),
        ("0.24.1.dev3+g0123abc.cpu", (0, 24)),
        ("1.2", (1, 2)),
        ("0.1.dev1+g0123abc", compat.NEWEST),
        ("dev", compat.NEWEST),
        ("", compat.NEWEST),
    ],
)
def test_versions_are_read_leniently(text: str, expected: tuple[int, int]) -> None:
    """A checkout without tags says 0.1: it is taken for the newest."""
    assert parsed(text) == expected


def test_every_point_says_what_is_lost_without_it() -> None:
    """Spans, or words; and each one is hooked by name once."""
    assert [p.method for p in POINTS if not (p.spans or p.less)] == []
    assert len({(p.place, p.method) for p in POINTS}) == len(POINTS) > 25


def test_a_missing_point_is_not_hooked() -> None:
    """And an object that is not in this process is not looked at."""
    seams, guard = Seams("push", {Place.WORKER: object()}, "0.32.0"), Guard(strict=True)
    seams.observe(guard, compat.FAILURE, before=print)
    seams.observe(guard, compat.MADE, before=print)
    assert not seams.has(compat.FAILURE) and not seams.has(compat.MADE)
