"""Spans of other producers, told by their names, in the words of our own."""

from collections.abc import Callable
from functools import lru_cache

from pdtrace.analysis import foreign_dynamo, foreign_llmd, foreign_vllm
from pdtrace.analysis.intake import Tally
from pdtrace.analysis.records import SpanRecord
from pdtrace.tracing import semconv

Adapter = Callable[[SpanRecord, Tally], SpanRecord]


@lru_cache(maxsize=4096)
def adapter(name: str) -> Adapter | None:
    """What reads spans of this name; None for our own, and for what nobody knows."""
    if name == semconv.VLLM_SPAN:
        return foreign_vllm.adapt
    if name == semconv.DYNAMO_SPAN:
        return foreign_dynamo.adapt
    return foreign_llmd.adapt if name.startswith(semconv.LLMD_PREFIX) else None
