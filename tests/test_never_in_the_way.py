"""Real engines whose every hook fails in turn answer as untraced ones do."""

import re

import pytest
from rigged_runs import PROMPTS, WITHOUT_HYBRID_MEMORY, Mode, Rigged, RiggedRuns, rigged_id

from pdtrace.analysis.store import read_spans
from pdtrace.connector.compat import POINTS, installed_vllm, parsed
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

MODES: list[Mode] = ["push", "pull"]
WHOLE = {
    sc.SPAN_REQUEST, sc.SPAN_LEG, sc.SPAN_PREFILL_QUEUE, sc.SPAN_PREFILL, sc.SPAN_PREFILL_END,
    sc.SPAN_LEASE, sc.SPAN_DECODE_ADMISSION, sc.SPAN_KV_WAIT, sc.SPAN_DECODE_START,
    sc.SPAN_FIRST_DECODE, sc.SPAN_DECODE,
}  # fmt: skip
IN_MODE = {
    "push": {sc.SPAN_REGISTRATION, sc.SPAN_MATCH, sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE},
    "pull": {sc.SPAN_READ_SUBMIT, sc.SPAN_READ_COMPLETE},
}


@pytest.fixture(params=MODES)
def run(request: pytest.FixtureRequest, rigged: RiggedRuns) -> Rigged:
    """The traced run of each mode."""
    return rigged.get(request.param, traced=True)


def methods(run: Rigged) -> set[str]:
    """What the guard calls the hooks that were made to fail."""
    return {hook.partition(".")[0] for hook in run.lines("raised")}


def hook_points(mode: str) -> set[str]:
    """The methods that the table of hook points names for this vLLM."""
    vllm = parsed(installed_vllm())
    points = [p for p in POINTS if p.expected(vllm) and p.needed(mode) and not p.attribute]
    return {point.method for point in points}


def rare(run: Rigged) -> set[str]:
    """The hooks that only a neighbour without hybrid memory lets vLLM call."""
    found = {hook for hook in run.hooks if hook.startswith(WITHOUT_HYBRID_MEMORY)}
    assert found
    return found


@pytest.mark.covers("failing-hook", "push", "pull", on="engines")
def test_every_hook_has_failed_and_no_answer_differs(run: Rigged, rigged: RiggedRuns) -> None:
    """All at once on a cold pair, then each alone: the same tokens and the same status codes."""
    untraced = rigged.get(run.mode, traced=False)
    assert {hook.partition(".")[0] for hook in run.hooks} == hook_points(run.mode) | {"notes"}
    assert set(run.hooks) - set(run.lines("raised")) == rare(run)
    for label, answer in run.answers.items():
        alike = label if label in untraced.answers else f"healthy-{answer[0]}"
        assert answer == untraced.answers[alike], label
    texts = [untraced.answers[f"healthy-{number}"] for number in range(len(PROMPTS))]
    assert [status for _, status, _ in texts] == [200] * len(PROMPTS)
    assert len({text for *_, text in texts}) == len(PROMPTS)
    statuses = {
        label: run.answers[label][1] for label in ("refused", "without key", "unknown peer")
    }
    assert statuses == {"refused": 400, "without key": 401, "unknown peer": 500}


@pytest.mark.covers("failing-hook", "push", "pull", on="engines")
@pytest.mark.parametrize("mode", MODES)
def test_hooks_that_a_neighbour_brings_have_failed(mode: Mode, rigged: RiggedRuns) -> None:
    """In a MultiConnector, beside a store: the same answers as of untraced NIXL alone."""
    run, untraced = rigged.get_beside_a_store(mode), rigged.get(mode, traced=False)
    assert rare(run) <= set(run.lines("raised"))
    assert [number for number, *_ in run.answers.values()] == list(range(1 + len(rare(run))))
    for label, answer in run.answers.items():
        assert answer == untraced.answers[f"healthy-{answer[0]}"], label


@pytest.mark.covers("failing-hook", "push", "pull", on="engines")
def test_failing_hooks_are_counted_and_told_once(run: Rigged) -> None:
    """One line for the first failure, with what is lost; the number of all of them at the end."""
    logs = {name: log for name, log in run.logs().items() if name in ("prefill-0", "decode-0")}
    counted: set[str] = set()
    for log in logs.values():
        for line in re.findall(rf"{sc.METRIC_HOOK_ERRORS}: (.*)", log):
            counted |= {name for name, number in re.findall(r"(\w+) (\d+)", line) if int(number)}
    assert counted == methods(run)
    for method in methods(run):
        told = [
            log.count(f"pdtrace: hook {method} failed; the request is") for log in logs.values()
        ]
        # Scheduler and worker share a process here, and each has the connector's `shutdown`.
        assert sum(told) >= 1 and max(told) <= (2 if method == "shutdown" else 1), method


@pytest.mark.covers("failing-hook", "push", "pull", on="engines")
def test_spans_are_whole_again_when_hooks_are(run: Rigged) -> None:
    """What failed before leaves nothing behind that would spoil a later request."""
    records = read_spans([run.directory / "store"]).records
    for number in range(len(PROMPTS)):
        mine = [r for r in records if r.attributes[sc.REQUEST_ID] == rigged_id(f"healthy-{number}")]
        assert {record.name for record in mine} == WHOLE | IN_MODE[run.mode]
        assert [record.name for record in mine if record.status == 2] == []
