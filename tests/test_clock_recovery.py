"""End to end: a run of real engines, one side of which is given a clock that is off and drifts.

Network namespaces share the host's clock, so the exported times are shifted instead: what a host
with such a clock would have written.
"""

import pytest
from generator import EPOCH_NS
from recorded_runs import Arm, Run, Runs
from skew import Skew, by_role, skewed

from pdtrace.analysis.alignment import align
from pdtrace.analysis.attempts import own_spans
from pdtrace.analysis.clock_evidence import messages
from pdtrace.analysis.clock_pairs import pairs_of
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.split import split
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

HOST = Skew("host")
THREE = {role: Skew(role) for role in (sc.ROLE_ROUTER, sc.ROLE_PREFILL, sc.ROLE_DECODE)}
DRIFT_PPB = 30_000


def off_clock(run: Run) -> Skew:
    """1.7 s behind when the run begins, and 30 us a second faster."""
    begun = min(span.start_ns for span in run.records)
    return Skew("other", -1_700_000_000 - DRIFT_PPB * (begun - EPOCH_NS) // 10**9, DRIFT_PPB)


@pytest.mark.parametrize("arm", [Arm("push"), Arm("pull")], ids=str)
def test_nothing_is_received_before_it_was_sent(arm: Arm, runs: Runs) -> None:
    """On one clock every message of a real run took time, however busy the machine was."""
    table = build(skewed(runs.get(arm).records, by_role(**THREE)))
    found = messages(own_spans(table.spans), table.events)
    assert found["kind"].nunique() >= 4
    assert found[found["received_ns"] < found["sent_ns"]].to_dict("records") == []


@pytest.mark.parametrize("off", [sc.ROLE_PREFILL, sc.ROLE_DECODE])
@pytest.mark.parametrize("arm", [Arm("push"), Arm("pull")], ids=str)
def test_phases_are_recovered_within_the_half_width(arm: Arm, off: str, runs: Runs) -> None:
    """TTFT to the nanosecond; the true offset lies inside, and no message contradicts another."""
    run = runs.get(arm)
    other = off_clock(run)
    clocks = {"router": HOST, "prefill": HOST, "decode": HOST, off: other}
    alignment = align(build(skewed(run.records, by_role(**clocks))))
    found = split(join(alignment.table, alignment))
    truth = split(join(build(run.records)))
    assert sorted(found.splittable) == sorted(truth.splittable)
    for label in truth.splittable:
        row, wanted = found.requests.loc[label], truth.requests.loc[label]
        assert row["ttft_ns"] == wanted["ttft_ns"]
        bent = int(wanted["ttft_ns"]) * DRIFT_PPB // 10**9 + 1
        difference = (found.exposed.loc[label] - truth.exposed.loc[label]).abs()
        assert 0 < row["clock_halfwidth_ns"] < 10**9
        assert (difference <= row["clock_halfwidth_ns"] + bent).all(), (label, difference)
    assert alignment.clocks is not None
    (pair,) = pairs_of(alignment.clocks)
    assert (pair.start, pair.end, pair.contradictions) == ("host", "other", [])
    assert pair.best.lo_ns is not None and pair.best.hi_ns is not None
    assert pair.best.lo_ns <= other.less_truth(pair.best.at_ns) <= pair.best.hi_ns
