"""Lift: planted faults rank first, the right relative is blamed, chance is not believed."""

import numpy as np
import pandas as pd
import pytest
from traffic import healthy, longer, on, some

from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.triage_attributes import attributes
from pdtrace.analysis.triage_choice import candidates, choose
from pdtrace.analysis.triage_lift import lift
from pdtrace.analysis.triage_sets import Objective, divide
from pdtrace.analysis.triage_traffic import Traffic

SLOWEST = Objective(share=0.05)


def lifted(traffic: Traffic, objective: Objective = SLOWEST) -> pd.DataFrame:
    sets = divide(traffic, objective)
    return lift(attributes(sets.ranked), sets.slow, arrivals(sets.ranked))


def arrivals(traffic: Traffic) -> Ints:
    return traffic.requests["t0_ns"].to_numpy(np.int64)


def first(found: pd.DataFrame) -> tuple[str, str]:
    return str(found["attribute"].iloc[0]), str(found["value"].iloc[0])


def test_permuted_labels_are_rarely_believed() -> None:
    """Over 60 random choices of the slow ones at most 5 % give any finding; none is named."""
    traffic = healthy(1200, 3)
    found = attributes(traffic)
    random, believed = np.random.default_rng(4), 0
    for _ in range(60):
        slow = pd.Series(random.permutation(1200) < 60, index=found.index)
        table = lift(found, slow, arrivals(traffic))
        believed += int(table["found"].any())
        assert not len(candidates(table))
    assert believed <= 3


def test_a_fault_of_a_fifth_of_the_slow_requests_ranks_first() -> None:
    """One engine of eight explains 20 %: in front of the list, too little to be the verdict."""
    traffic = healthy(4000, 5, decode_engines=8)
    random = some(traffic, 0.08) & ~on(traffic, decode_engine="d-3")
    faulty = on(traffic, decode_engine="d-3") & some(traffic, 0.22, seed=6)
    found = lifted(
        longer(traffic, "landed_to_seen", random | faulty, 200), Objective(slo_ns=200_000_000)
    )
    row = found.iloc[0]
    assert first(found) in (("decode_engine", "d-3"), ("decode_host", "host-d-3"))
    assert row["found"] and 0.1 < row["coverage_low"] < row["coverage"] < 0.3
    assert choose(found, "landed_to_seen") is None


@pytest.mark.parametrize("part", [1.0, 0.6])
def test_a_fault_of_a_pair_is_blamed_on_the_pair(part: float) -> None:
    """Not on its engines, whose other pairs are well."""
    traffic = healthy(3000, 7)
    where = on(traffic, prefill_engine="p-1", decode_engine="d-2") & some(traffic, part)
    found = choose(lifted(longer(traffic, "transfer", where, 150)), "transfer")
    assert found is not None
    assert (found.attribute, found.value, found.aliases) == ("pair", "p-1 → d-2", ())


@pytest.mark.parametrize("attribute, value", [("prefill_engine", "p-1"), ("decode_engine", "d-2")])
def test_a_fault_of_an_engine_is_not_blamed_on_a_pair(attribute: str, value: str) -> None:
    """Nor on the host: it is the same requests, and named beside the engine."""
    traffic = healthy(3000, 8)
    where = on(traffic, **{attribute: value}) & some(traffic, 0.5)
    phase = "prefill_queue" if attribute == "prefill_engine" else "landed_to_seen"
    found = choose(lifted(longer(traffic, phase, where, 150), Objective(slo_ns=200_000_000)), phase)
    assert found is not None and (found.attribute, found.value) == (attribute, value)
    assert found.aliases == ((attribute.replace("engine", "host"), f"host-{value}"),)


def test_a_fault_of_a_host_with_two_engines_is_blamed_on_the_host() -> None:
    """Both engines are slow alike."""
    traffic = healthy(3000, 9, decode_engines=6)
    engine = traffic.requests["decode_engine"]
    host = ("host-" + (engine.str[-1].astype("int64") // 2).astype("str")).astype("str")
    traffic.requests["decode_host"] = host
    slow = longer(traffic, "admission", on(traffic, decode_host="host-1"), 150)
    found = choose(lifted(slow, Objective(slo_ns=200_000_000)), "admission")
    assert found is not None and (found.attribute, found.value) == ("decode_host", "host-1")


def test_engines_that_only_work_together_are_named_by_the_side_of_the_phase() -> None:
    """p-1 serves d-1 alone: the same requests, so what waits tells which is meant."""
    traffic = healthy(2000, 10, prefill_engines=3, decode_engines=1)
    d = "d-" + traffic.requests["prefill_engine"].str[-1]
    traffic.requests["decode_engine"] = d.astype("str")
    slow = longer(traffic, "transfer", on(traffic, prefill_engine="p-1"), 150)
    table = lifted(slow, Objective(slo_ns=200_000_000))
    named = {phase: choose(table, phase) for phase in ("prefill", "requeue", "transfer")}
    assert {phase: found and found.attribute for phase, found in named.items()} == {
        "prefill": "prefill_engine",
        "requeue": "decode_engine",
        "transfer": "pair",
    }


def test_lengths_do_not_make_an_engine_guilty() -> None:
    """One engine gets all long prompts: slow among all, usual among its equals."""
    traffic = healthy(3000, 11, tokens=(256, 4096))
    long = traffic.requests["input_tokens"] == 4096
    engine = traffic.requests["decode_engine"]
    traffic.requests["decode_engine"] = engine.mask(long & some(traffic, 0.8), "d-3").astype("str")
    found = lifted(traffic, Objective(share=0.2)).set_index(["attribute", "value"])
    assert found["rate"]["decode_engine", "d-3"] > 0.25
    assert not found["found"]["decode_engine", "d-3"]


def test_an_engine_that_only_served_while_all_were_slow_is_not_guilty() -> None:
    """d-3 was added in the last third, when every engine was slow alike."""
    traffic = healthy(4000, 12)
    late = pd.Series(np.arange(4000) > 2600, index=traffic.requests.index)
    engine = traffic.requests["decode_engine"]
    traffic.requests["decode_engine"] = engine.mask((engine == "d-3") & ~late, "d-2").astype("str")
    slow = longer(traffic, "hop", late & some(traffic, 0.5), 150)
    found = lifted(slow, Objective(slo_ns=200_000_000))
    row = found.set_index(["attribute", "value"]).T["decode_engine", "d-3"]
    assert row["rate"] > 2 * row["rest_rate"] and not row["found"]
    assert choose(found, "hop") is None


def test_two_faulty_engines_are_both_told() -> None:
    """The one that covers more is named, the other one beside it."""
    traffic = healthy(4000, 13)
    where = on(traffic, decode_engine="d-1") | (
        on(traffic, decode_engine="d-2") & some(traffic, 0.8)
    )
    found = choose(lifted(longer(traffic, "requeue", where, 150), Objective(share=0.4)), "requeue")
    assert found is not None and (found.attribute, found.value) == ("decode_engine", "d-1")
    assert [other[:2] for other in found.others] == [("decode_engine", "d-2")]
