"""The hook table against the sources of vLLM's releases: a rename fails here, not at a customer."""

import ast
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine_imports  # noqa: F401  # first of all
import pytest
from vllm_sources import Tree, attributes_of, fetch

from pdtrace.connector import compat
from pdtrace.connector.compat import POINTS, HookPoint, Place, parsed
from pdtrace.connector.pull import PullWorkerHooks
from pdtrace.connector.push import NixlPushConnector, PushWorkerHooks
from pdtrace.connector.scheduler import SchedulerHooks
from pdtrace.connector.seams import fits
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.guard import Guard
from pdtrace.tracing.testing import make_recorder

RELEASES = (
    "0.20.2", "0.23.0", "0.24.0", "0.26.0", "0.27.1", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
)  # fmt: skip
MODES = (sc.MODE_PUSH, sc.MODE_PULL)


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> tuple[compat.Version, Tree]:
    """A release and its sources; those that are installed need not be fetched."""
    version: str = request.param
    if compat.installed_vllm().startswith(version):
        spec = importlib.util.find_spec("vllm")
        assert spec is not None and spec.origin is not None
        return parsed(version), Tree(Path(spec.origin).parent.parent)
    return parsed(version), Tree(fetch(version))


def class_of(place: Place, mode: str, version: compat.Version) -> str:
    """Name of vLLM's class at one place of the table."""
    kind = "" if version < compat.PUSH_SINCE else mode.capitalize()
    suffix = {Place.SCHEDULER: "Scheduler", Place.WORKER: "Worker"}.get(place, "")
    return f"Nixl{kind}Connector{suffix}"


def in_vllm(mode: str) -> list[HookPoint]:
    """The part of the table that is vLLM's own, for one mode."""
    return [p for p in POINTS if p.place is not Place.AGENT and p.needed(mode)]


def wrong(point: HookPoint, mode: str, version: compat.Version, tree: Tree) -> str:
    """What the table says of one release and is not so."""
    name = class_of(point.place, mode, version)
    if point.attribute:
        found = point.method in tree.attributes(name)
        return "" if found is point.expected(version) else f"{name}.{point.method}: {found}"
    parameters = tree.parameters(name, point.method)
    if not point.expected(version):
        return "" if parameters is None else f"{name}.{point.method} exists"
    if parameters is None:
        return f"{name}.{point.method} does not exist"
    if not fits(point, parameters):
        return f"{name}.{point.method} takes {parameters}"
    missing = [
        attribute
        for place, attribute in point.reads
        if attribute not in tree.attributes(class_of(place, mode, version))
    ]
    return f"{name} has no {missing}" if missing else ""


@pytest.mark.covers(
    "vllm-0.31", *MODES, on="classes", why="one vLLM is installed; docs/versions.md has the run"
)
def test_the_table_says_what_each_release_has(release: tuple[compat.Version, Tree]) -> None:
    """Name, leading parameters and attributes of every point; and none before it was there."""
    version, tree = release
    modes = MODES if version >= compat.PUSH_SINCE else MODES[1:]
    assert tree.has_class("NixlPushConnector") is (version >= compat.PUSH_SINCE)
    elder = compat.RESULTS_TUPLE  # stays in later releases, where nobody calls it
    found = [
        f"{mode}: {complaint}"
        for mode in modes
        for point in in_vllm(mode)
        if point is not elder or point.expected(version)
        if (complaint := wrong(point, mode, version, tree))
    ]
    assert found == []


def test_the_runner_asks_for_the_results_that_the_table_hooks(
    release: tuple[compat.Version, Tree],
) -> None:
    """Two points of the table follow each other: one method came and the other fell silent."""
    version, tree = release
    runner = ast.unparse(tree.module("vllm/v1/worker/kv_connector_model_runner_mixin.py"))
    for point in (compat.RESULTS, compat.RESULTS_TUPLE):
        assert (f".{point.method}(" in runner) is point.expected(version), point.method


ELSEWHERE = {
    ("vllm/v1/request.py", "Request"): {
        "request_id", "kv_transfer_params", "trace_headers", "num_prompt_tokens",
        "num_computed_tokens", "num_output_tokens", "num_preemptions", "status", "events",
        "lora_request",
    },
    ("vllm/v1/outputs.py", "KVConnectorOutput"): {
        "finished_sending", "finished_recving", "kv_connector_worker_meta",
    },
    ("vllm/v1/core/sched/output.py", "SchedulerOutput"): {"num_scheduled_tokens"},
}  # fmt: skip
METADATA = {
    sc.MODE_PULL: {"reqs_to_recv"},
    sc.MODE_PUSH: {"push_registrations", "push_finished_blocks"},
}


def test_the_objects_that_hooks_are_given_have_what_they_read(
    release: tuple[compat.Version, Tree],
) -> None:
    """Requests, outputs and the connector's metadata."""
    version, tree = release
    for (path, name), read in ELSEWHERE.items():
        nodes = [n for n in tree.module(path).body if isinstance(n, ast.ClassDef)]
        (node,) = [n for n in nodes if n.name == name]
        assert read - set(attributes_of(node)) == set(), name
    modes = MODES if version >= compat.PUSH_SINCE else MODES[1:]
    read = set().union(*(METADATA[mode] for mode in modes))
    assert read - tree.attributes("NixlConnectorMetadata") == set()


class RecordingSeams:
    """Takes down which functions are put on which point."""

    def __init__(self) -> None:
        self.hooks: list[tuple[HookPoint, Callable[..., None], bool]] = []

    def has(self, point: HookPoint) -> bool:
        """Everything is there."""
        return True

    def attribute(self, point: HookPoint) -> None:
        """Nothing to read."""

    def observe(self, guard: Guard, point: HookPoint, **hooks: Any) -> None:
        """`after` and `raised` are given a result or an error before the arguments."""
        self.hooks += [
            (point, hook, name != "before") for name, hook in hooks.items() if hook is not None
        ]


def all_hooks() -> list[tuple[HookPoint, Callable[..., None], bool]]:
    """Every hook of the project."""
    recorder, _ = make_recorder()
    seams: Any = RecordingSeams()
    SchedulerHooks(recorder, "push", "m").install(seams, recorder.guard)
    worker = SimpleNamespace()
    for hooks in (PushWorkerHooks, PullWorkerHooks):
        hooks(recorder, worker).install(seams, recorder.guard)
    tell = NixlPushConnector._tell_peer.__get__(object())
    seams.observe(recorder.guard, compat.STAGED, after=tell)
    assert {point for point, *_ in seams.hooks} == set(POINTS) - {
        compat.LOAD, compat.SCHEDULER_SHUTDOWN, compat.WORKER_SHUTDOWN, compat.DEADLINES,
    }  # fmt: skip
    found: list[tuple[HookPoint, Callable[..., None], bool]] = seams.hooks
    return found


RECEIVERS = {
    Place.FACADE_SCHEDULER: ("self.connector", "connector"),
    Place.SCHEDULER: ("self.connector_scheduler",),
    Place.WORKER: ("self", "self.connector_worker"),
    Place.AGENT: ("self.nixl_wrapper",),
}


def test_hooks_accept_every_call_that_a_release_makes(
    release: tuple[compat.Version, Tree],
) -> None:
    """By position or by name: a hook is called with what vLLM calls its method with."""
    version, tree = release
    refused, called = [], set()
    for point, hook, has_result in all_hooks():
        if not point.expected(version) or point.place not in RECEIVERS:
            continue
        for call in tree.calls(RECEIVERS[point.place], point.method):
            names = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            if any(isinstance(argument, ast.Starred) for argument in call.args):
                continue
            called.add(point)
            places = [None] * (len(call.args) + has_result)
            try:
                inspect.signature(hook).bind(*places, **names)
            except TypeError as error:
                refused.append(f"{ast.unparse(call)[:80]}: {error}")
    assert refused == []
    modes = MODES if version >= compat.PUSH_SINCE else MODES[1:]
    expected = {
        p
        for mode in modes
        for p in POINTS
        if p.needed(mode) and p.expected(version) and p.place in RECEIVERS and not p.attribute
    }
    never_called = {p.method for p in expected - called} - {"shutdown", "request_finished"}
    assert never_called == set()


def test_nixls_agent_has_what_the_table_says() -> None:
    """The installed NIXL; vLLM's calls of it are looked at above."""
    from nixl._api import nixl_agent

    for point in POINTS:
        if point.place is Place.AGENT:
            signature = inspect.signature(getattr(nixl_agent, point.method))
            assert fits(point, list(signature.parameters)[1:]), point.method
