"""The sweep's order of edges, whatever their times."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.analysis import sweep

edges = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5), st.integers(1, 5))


@pytest.mark.parametrize("unit", [1, 2**58])
@settings(deadline=None)
@given(st.lists(edges, max_size=12))
def test_segments_are_in_order_of_key_and_time(
    unit: int, found: list[tuple[int, int, int, int]]
) -> None:
    """Times so far apart that they fit into no number together with a key are ordered alike."""
    frame = pd.DataFrame(found, columns=["key", "layer", "start_ns", "length"], dtype="int64")
    frame["end_ns"] = frame["start_ns"] + frame.pop("length")
    frame[["start_ns", "end_ns"]] *= unit
    cut = sweep.segments(frame, 3)
    expected = []
    for key in sorted(set(frame["key"])):
        mine = frame[frame["key"] == key]
        times = sorted({*mine["start_ns"], *mine["end_ns"]})
        for start, end in zip(times, times[1:], strict=False):
            over = mine[(mine["start_ns"] <= start) & (mine["end_ns"] >= end)]
            expected.append((key, start, end, sorted(set(over["layer"]))))
    active = [np.flatnonzero(layers).tolist() for layers in cut.active.T]
    assert [*zip(cut.key, cut.start_ns, cut.end_ns, active, strict=True)] == expected
