"""Ids that were used once are settled without a look at ties: the same result as with it."""

from dataclasses import replace
from random import Random

import numpy as np
import pandas as pd
from generator import Shape, records
from hypothesis import given, settings
from hypothesis import strategies as st
from test_split_properties import shapes

from pdtrace.analysis.identity import Identity, by_ties, engine_legs, identify
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

SWAPPED = (sc.REQUEST_ID, sc.ENGINE_REQUEST_ID, sc.PEER_ENGINE_REQUEST_ID)


def swapped(spans: list[SpanRecord], random: Random, share: float) -> list[SpanRecord]:
    """Some spans get the id, the leg, the peer, the trace or the parent of another span."""
    found = []
    for span in spans:
        other = random.choice(spans)
        kind = random.choice([*SWAPPED, "trace", "parent"]) if random.random() < share else ""
        if kind == "trace":
            span = replace(span, trace_id=other.trace_id)
        elif kind == "parent":
            span = replace(span, trace_id=other.trace_id, parent_id=other.span_id)
        elif kind and kind in other.attributes:
            span = replace(span, attributes={**span.attributes, kind: other.attributes[kind]})
        found.append(span)
    return found


def same(one: Identity, other: Identity) -> None:
    """All of it."""
    pd.testing.assert_frame_equal(one.requests, other.requests)
    np.testing.assert_array_equal(one.request, other.request)
    np.testing.assert_array_equal(one.mispaired, other.mispaired)


@settings(max_examples=150, deadline=None)
@given(
    batch=st.lists(shapes, min_size=1, max_size=6),
    ids=st.integers(1, 6),
    share=st.sampled_from([0.0, 0.01, 0.05, 0.3]),
    seed=st.integers(0, 999),
)
def test_ids_used_once_are_what_ties_make_of_them(
    batch: list[Shape], ids: int, share: float, seed: int
) -> None:
    """Whatever is shared between them: ids used again, legs, traces, parents, peers."""
    random = Random(seed)
    spans = [
        span
        for number, shape in enumerate(batch)
        for span in records(replace(shape, start=shape.start % 10**6), f"r-{number % ids}")
    ]
    own = build(swapped(spans, random, share)).spans
    leg = engine_legs(own)
    same(identify(own, leg), by_ties(own, leg))
