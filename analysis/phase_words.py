"""One plain sentence for each phase of a request: from what to what it went, on what evidence."""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from pdtrace.analysis import phases
from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL, SIDE_ROUTER
from pdtrace.analysis.counted import plural
from pdtrace.analysis.edges import landed_by
from pdtrace.analysis.subject import Rank, Subject

AT_ONCE_NS: Final = 10**6
A_PASS_NS: Final = 50 * 10**6
"""A scheduler that finds free blocks allocates them within the pass that tries: hardly longer."""


class Context(NamedTuple):
    """The request; the sides in whose lanes the phase is; how long it was active (ns)."""

    one: Subject
    sides: Collection[str]
    length_ns: int


def sentence(phase: str, about: Context) -> str:
    """What happened in the phase; every phase has a sentence."""
    said = _SENTENCES[phase](about)
    return f"The {said[4:]}" if said.startswith("the ") else said


def milliseconds(ns: int) -> str:
    """`27.900 ms`."""
    return f"{ns / 1e6:,.3f} ms"


def size(count: int) -> str:
    """Bytes in decimal units: `629.1 MB`."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"


def _names(about: Context) -> tuple[str, str]:
    engines = about.one.engines
    return engines[SIDE_PREFILL], engines[SIDE_DECODE]


def _ingress(about: Context) -> str:
    p, d = _names(about)
    first = p if about.one.p_counts else d
    start = "router's receipt of the request" if about.one.clocks.get(SIDE_ROUTER) else "arrival"
    return f"From the {start} until {first} had it: an engine takes requests between its steps."


def _retry(about: Context) -> str:
    one = about.one
    said = sorted({error for side in one.retried for error in one.lost[side]})
    where = " and ".join(one.engines[side] for side in sorted(one.retried, reverse=True))
    why = f" ({', '.join(said)})" if said else ""
    return f"A try was lost{why}; from its start until the next one reached {where}."


def _prefill_queue(about: Context) -> str:
    p, d = _names(about)
    on_d = SIDE_PREFILL not in about.sides
    return f"{d if on_d else p} had the request and had not scheduled it yet."


def _prefill(about: Context) -> str:
    p, d = _names(about)
    facts, said = about.one.facts, []
    if SIDE_PREFILL in about.sides:
        said.append(f"{p} computed {_prompt(about.one)}")
        if facts.prefill_gap_ns:
            said.append(f"in {milliseconds(facts.prefill_gap_ns)} of that it was in no batch")
        if facts.prefill_preemptions:
            said.append(f"it was preempted {plural(facts.prefill_preemptions, 'time')}")
    if SIDE_DECODE in about.sides:
        again = about.one.recomputed
        what = "the prompt" if again is None else f"{plural(again, 'token')} of the prompt"
        once_more = " again, which it could not load" if SIDE_PREFILL in about.sides else " itself"
        said.append(f"{d} computed {what}{once_more}")
    return "; ".join(said) + "."


def _prompt(one: Subject) -> str:
    tokens, cached = one.row.input_tokens, one.row.prefill_cached_tokens or 0
    if tokens is None:
        return "the prompt"
    had = f" ({cached:,} more were in its prefix cache)" if cached else ""
    return f"{plural(tokens - cached, 'token')} of the prompt{had}"


def _match(about: Context) -> str:
    one, (p, d) = about.one, _names(about)
    blocks, received = one.at.get("blocks_ns"), one.at.get("received_ns")
    said = f"From {p}'s computed prompt until its writer had the blocks and began"
    if blocks is None or received is None:
        return said + "."
    if received <= blocks:
        return f"{said}; {d}'s registration was there before."
    return f"{said}, less the wait for {d}'s registration, which came after the blocks."


def _hop(about: Context) -> str:
    one, (p, d) = about.one, _names(about)
    if one.concurrent and one.push:
        return f"The decode leg left the router beside the prefill leg and went to {d}."
    return f"From the end of {p}'s part until {d} had the decode leg, which the router sends then."


def _admission(about: Context) -> str:
    _, d = _names(about)
    return f"From {d}'s having the request until its scheduler first tried it, in its next pass."


def _decode_capacity(about: Context) -> str:
    _, d = _names(about)
    if about.length_ns < AT_ONCE_NS:
        return f"{d}'s scheduler tried it and found KV blocks for it at once."
    if about.length_ns < A_PASS_NS:
        return f"From {d}'s first try until it had KV blocks: a slow pass, or none were free."
    return f"{d}'s scheduler tried it, and {d} had no free KV blocks for it until the end of this."


def _registration(about: Context) -> str:
    one, (p, d) = about.one, _names(about)
    said = []
    if SIDE_DECODE in about.sides:
        if one.push:
            last = _last(one, [(rank, rank.received_ns) for rank in one.ranks])
            said.append(f"From {d}'s allocated blocks until {p} knew that it is to fill them{last}")
        else:
            said.append(f"From {d}'s allocated blocks until {d}'s worker took up the load")
    if SIDE_PREFILL in about.sides:
        said.append(f"until {p}'s worker took up what it reads back from {d}")
    return "; ".join(said) + "."


def _handshake(about: Context) -> str:
    p, d = _names(about)
    asked, other = (p, d) if SIDE_PREFILL in about.sides else (d, p)
    return (
        f"The pair was cold: {asked} had to exchange NIXL metadata with {other} before the first "
        "transfer between them."
    )


def _submit(about: Context) -> str:
    one = about.one
    what = "descriptors" + (f" for {size(n)}" if (n := one.row.transfer_bytes) else "")
    if count := one.row.transfer_descriptors:
        what = what.replace("descriptors", plural(count, "descriptor"), 1)
    last = _last(one, [(rank, rank.posted_ns) for rank in one.ranks])
    return f"{one.engines[one.initiator]} built and posted {what}{last}."


def _transfer(about: Context) -> str:
    one, (p, d) = about.one, _names(about)
    moved, kind = one.row.transfer_bytes, "WRITE" if one.push else "READ"
    said = f"{size(moved) if moved else 'The blocks'} went from {p} to {d} (NIXL {kind}"
    if one.row.bytes_per_s and one.row.transfer_ns:
        rate = size(one.row.bytes_per_s)
        said += f", at least {rate}/s over {milliseconds(one.row.transfer_ns)}"
    said += ")" + _last(one, [(rank, rank.done_ns) for rank in one.ranks])
    if one.row.rank_straggle_ns and one.row.slowest_rank:
        said += f", {milliseconds(one.row.rank_straggle_ns)} after the median"
    if SIDE_PREFILL in about.sides and not one.push:
        said += f"; before, {p} read back from {d} what it had of an earlier turn"
    return said + ". Completion is polled, so this is an upper bound."


def _landed_to_seen(about: Context) -> str:
    one, (p, d) = about.one, _names(about)
    by = {SIDE_PREFILL: f"{p} saw", SIDE_DECODE: f"{d}'s worker saw"}[landed_by(one)]
    if "landed_ns" not in one.at or SIDE_DECODE not in about.sides:
        return f"From the data's being there until {p}'s scheduler knew it."
    return f"From the data's being there ({by} it first) until {d}'s scheduler knew it."


def _requeue(about: Context) -> str:
    p, d = _names(about)
    where = d if SIDE_DECODE in about.sides else p
    return f"From {where}'s scheduler knowing of the data until its next pass."


def _decode_queue(about: Context) -> str:
    _, d = _names(about)
    return f"The data was there, but {d}'s scheduler had no room for the request in its batch."


def _first_decode(about: Context) -> str:
    _, d = _names(about)
    return f"{d} scheduled the request and computed its first token."


def _egress(about: Context) -> str:
    _, d = _names(about)
    return f"From {d}'s first token until it left the router."


def _unattributed(about: Context) -> str:
    why = about.one.row.reason or ""
    return f"No span says what happened here{why and f': {why}'}."


def _last(one: Subject, known: list[tuple[Rank, int | None]]) -> str:
    """Which of several ranks was last, "" where none was or one is not known."""
    by_time = sorted((at, rank.name) for rank, at in known if at is not None)
    if len(by_time) < max(len(known), 2) or by_time[-1][0] == by_time[-2][0]:
        return ""
    at, name = by_time[-1]
    return f"; the last of {len(by_time)} ranks was {name}, at {milliseconds(at)}"


_SENTENCES: Final[dict[str, Callable[[Context], str]]] = {
    phases.INGRESS: _ingress,
    phases.RETRY: _retry,
    phases.PREFILL_QUEUE: _prefill_queue,
    phases.PREFILL: _prefill,
    phases.MATCH: _match,
    phases.HOP: _hop,
    phases.ADMISSION: _admission,
    phases.DECODE_CAPACITY: _decode_capacity,
    phases.REGISTRATION: _registration,
    phases.HANDSHAKE: _handshake,
    phases.SUBMIT: _submit,
    phases.TRANSFER: _transfer,
    phases.LANDED_TO_SEEN: _landed_to_seen,
    phases.REQUEUE: _requeue,
    phases.DECODE_QUEUE: _decode_queue,
    phases.FIRST_DECODE: _first_decode,
    phases.EGRESS: _egress,
    phases.UNATTRIBUTED: _unattributed,
}
