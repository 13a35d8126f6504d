"""What a request was, in sentences: its way, its size, its first token, its flags, its end."""

from collections.abc import Iterator, Mapping
from typing import Final

from pdtrace.analysis import phases
from pdtrace.analysis.counted import plural
from pdtrace.analysis.phase_words import milliseconds, size
from pdtrace.analysis.subject import Subject
from pdtrace.tracing import semconv

FLAG_WORDS: Final = {
    "adjusted_by_backend": (
        "the trace store moved its spans in time, so nothing between hosts is known"
    ),
    "aborted": "it was aborted before its first token",
    "clocks_not_aligned": (
        "its spans are on several clocks that could not be compared, so that nothing between "
        "hosts is known"
    ),
    "clocks_not_known": (
        "some instants are of producers that name no clock; between hosts they may be off"
    ),
    "cold_handshake": "it waited for the first NIXL handshake of its pair of engines",
    "foreign_evidence": "some instants are known from other producers only",
    "joined_by_request_id": "its spans are in several traces and were joined by request id",
    "lease_expired": (
        "P's lease ran out before the last rank's data had landed: the answer may rest on blocks "
        "that were used again"
    ),
    "load_failed_recompute": "D could not load the KV cache and computed the prompt again",
    "mispaired": (
        "blocks moved between this request and another one with the same id: the answer is wrong"
    ),
    "missing_decode": "no span of a decode engine",
    "missing_prefill": "no span of a prefill engine",
    "missing_router": (
        "no span of a router, so the way back is not known and the TTFT is a lower bound"
    ),
    "missing_transfer": "no span of the transfer",
    "partial_trace": "the trace store said that its answer was cut",
    "phantom_request": "vLLM made an empty request of its own after this one had failed on D",
    "retried": "an earlier try was lost; the one that gave the first token is shown",
    "second_registration": "D registered its blocks twice",
    "several_choices": (
        "D ran several choices of it at once; the one with the first token is shown"
    ),
}
EVIDENCE_WORDS: Final = {
    "own": "pdtrace's own spans",
    "foreign": "only spans of other producers, a lower grade",
}


def about(one: Subject) -> Iterator[tuple[str, str]]:
    """Pairs of a short label and what is to be said; nothing is said of what is not known."""
    row = one.row
    ways = {
        semconv.DISPATCH_CONCURRENT: "both legs sent together",
        semconv.DISPATCH_SEQUENTIAL: "the decode leg sent after the prefill leg",
    }
    way = ways.get(row.dispatch or "", row.dispatch)
    yield "request", row.id if row.instance == 1 else f"{row.id} ({row.instance})"
    yield "trace", row.trace_id or "not known"
    yield "way", ", ".join(word for word in (row.mode, way) if word) or "not known"
    yield "engines", f"{_place(one, 'prefill')} → {_place(one, 'decode')}"
    if row.model:
        yield "model", row.model
    if sizes := "; ".join(_sizes(one)):
        yield "size", sizes
    yield "outcome", row.outcome or "nothing says how it ended: it may still run"
    yield "evidence", EVIDENCE_WORDS.get(row.evidence, row.evidence)
    if row.reason:
        yield "left out", row.reason
    for flag in row.flags:
        yield flag, flag_words(flag)


def flag_words(flag: str) -> str:
    """A flag as half a sentence."""
    return FLAG_WORDS.get(flag, flag.replace("_", " "))


def _place(one: Subject, side: str) -> str:
    engine, host = getattr(one.row, f"{side}_engine"), getattr(one.facts, f"{side}_host")
    name = engine or f"{side} engine not known"
    return f"{name} on {host}" if host else name


def _sizes(one: Subject) -> Iterator[str]:
    row = one.row
    if row.input_tokens is not None:
        yield f"prompt of {plural(row.input_tokens, 'token')}"
    if row.prefill_cached_tokens:
        yield f"{row.prefill_cached_tokens:,} of them in P's prefix cache"
    if row.external_tokens is not None:
        yield f"D loaded {plural(row.external_tokens, 'token')}"
    if row.transfer_bytes is not None:
        moved = f"{size(row.transfer_bytes)} moved"
        count = row.transfer_descriptors
        yield moved + (f" in {plural(count, 'descriptor')}" if count else "")
    if row.output_tokens is not None:
        pace = f", {milliseconds(row.tpot_ns)} each after the first" if row.tpot_ns else ""
        yield f"answer of {plural(row.output_tokens, 'token')}{pace}"


def first_token(one: Subject) -> str:
    """TTFT in words, `>=` for a lower bound."""
    if one.row.ttft_ns is None:
        known = one.row.t1_ns is None and one.row.outcome is not None
        return "no first token" if known else "time of the first token not known"
    return f"{'>= ' if one.row.lower_bound else ''}{milliseconds(one.row.ttft_ns)}"


def last_seen(one: Subject) -> str:
    """The last that is known of a request without a first token."""
    if one.last is None:
        return "No span of pdtrace's own tells of it."
    how = f" with {one.last.error_type}" if one.last.error_type else ""
    return (
        f"The last that is known of it: {one.last.name} on {one.last.where} ended{how}, "
        f"{milliseconds(one.last.end_ns)} after its arrival."
    )


def shares(classes: Mapping[str, int]) -> str:
    """The classes with their shares of the TTFT."""
    total = max(sum(classes.values()), 1)
    names = {phases.COMPUTE: "compute wait", phases.COORDINATION: "coordination wait"}
    return " + ".join(
        f"{names.get(name, name)} {ns / 1e6:,.3f} ({100 * ns / total:.1f} %)"
        for name, ns in classes.items()
        if ns
    )


def advice(exposed: Mapping[str, int], drag: Mapping[str, int]) -> str:
    """What took most, and what would save most: not the same where legs ran side by side."""
    known = {name: ns for name, ns in exposed.items() if name != phases.UNATTRIBUTED and ns}
    if not known:
        return "Nothing of it is explained."
    most = max(known, key=lambda name: known[name])
    total, dark = max(sum(exposed.values()), 1), exposed[phases.UNATTRIBUTED]
    took = f"{most} took most: {milliseconds(known[most])} ({100 * known[most] / total:.1f} %)"
    if dark > known[most]:
        took = f"{100 * dark / total:.1f} % are covered by no span; of the rest {took}"
    gain, best = drag[most], max(drag, key=lambda name: drag[name])
    sooner = f"{milliseconds(gain)} sooner" if gain else "no sooner"
    if gain == known[most]:
        return f"{took}; without it the first token would have come {sooner}."
    said = f"{took}, but without it the first token would have come only {sooner}."
    said = said.replace("only no sooner", "no sooner")
    if gain == drag[best]:
        return said
    return f"{said} What would save most is {best}: {milliseconds(drag[best])}."
