"""One request with everything that is said of it: what sentences and pictures are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE, SIDE_PREFILL
from pdtrace.analysis.coded import decoded
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.rows import RequestRow, request_rows
from pdtrace.analysis.split import Split
from pdtrace.tracing import semconv


class Facts(NamedTuple):
    """What its engines say beside what stands in the row; None where nobody says."""

    prefill_host: str | None
    decode_host: str | None
    prefill_preemptions: int | None
    decode_preemptions: int | None
    prefill_gap_ns: int | None


class Rank(NamedTuple):
    """An initiating rank by name; its instants are ns from the request's arrival."""

    name: str
    received_ns: int | None
    posted_ns: int | None
    completed_ns: int | None
    done_ns: int | None
    """When its data was there: its completion, at most when all had landed."""


class LastSpan(NamedTuple):
    """The span that ended last; `end_ns` from the request's arrival."""

    name: str
    where: str
    end_ns: int
    error_type: str | None


@dataclass(frozen=True)
class Subject:
    """`at`: every instant of the handoffs' row that is known, ns from arrival. `lost`: error
    types of the tries that do not count, by side. `retried`: sides with such tries. `clocks`: the
    clocks of each side's spans. `recomputed`: tokens that D computed again."""

    row: RequestRow
    facts: Facts
    at: Mapping[str, int]
    concurrent: bool
    p_counts: bool
    ranks: tuple[Rank, ...]
    lost: Mapping[str, tuple[str, ...]]
    retried: frozenset[str]
    clocks: Mapping[str, frozenset[str]]
    recomputed: int | None
    last: LastSpan | None

    @property
    def push(self) -> bool:
        """P writes; else D reads."""
        return self.row.mode == semconv.MODE_PUSH

    @property
    def initiator(self) -> str:
        """The side that moves the blocks."""
        return SIDE_PREFILL if self.push else SIDE_DECODE

    @property
    def engines(self) -> Mapping[str, str]:
        """By side, the engine's name."""
        return {
            SIDE_PREFILL: self.row.prefill_engine or "the prefill engine",
            SIDE_DECODE: self.row.decode_engine or "the decode engine",
        }


def only(handoffs: Handoffs, label: str) -> Handoffs:
    """The handoffs of one request."""
    parts = {
        name: decoded(frame[frame["request_id"] == label])
        for name, frame in vars(handoffs).items()
        if name != "requests" and "request_id" in frame
    }
    rows = {"requests": handoffs.requests.loc[[label]], "at": handoffs.at.loc[[label]]}
    return replace(handoffs, **rows, **parts)


def subject(handoffs: Handoffs, done: Split, arrival: int) -> Subject:
    """`handoffs`: those of one request, see `only`; `done`: their split; `arrival`: Unix ns."""
    ((_, row),) = request_rows(done.requests)
    requests = handoffs.requests
    values = {str(name): _plain(requests[name].iloc[0]) for name in requests.columns}
    spans = handoffs.spans[~handoffs.spans["phantom"]]
    at = {
        name: value - arrival
        for name, value in values.items()
        if name.endswith("_ns") and value is not None and name not in _LENGTHS
    }
    again = spans["recomputed_tokens"].max()
    return Subject(
        row=row,
        facts=Facts(**{name: values[name] for name in Facts._fields}),
        at=at,
        concurrent=bool(values["concurrent"]),
        p_counts=bool(values["p_counts"]),
        ranks=_ranks(handoffs.ranks, arrival, values["landed_ns"]),
        lost=_lost(handoffs, spans),
        retried=frozenset(side for side in _RETRIED if values[_RETRIED[side]]),
        clocks={
            str(side): frozenset(mine["clock_id"]) - {""} for side, mine in spans.groupby("side")
        },
        recomputed=_plain(again),
        last=_last(spans, arrival),
    )


_RETRIED = {SIDE_PREFILL: "p_retried", SIDE_DECODE: "d_retried"}
_LENGTHS = frozenset(
    ("ttft_ns", "handover_ns", "tpot_ns", "prefill_gap_ns", "clock_halfwidth_ns")
) | {"rank_straggle_ns"}


def _plain(value: Any) -> Any:
    """A cell as a Python value, None for `<NA>` and ""."""
    if isinstance(value, tuple):
        return value
    if pd.isna(value) or value == "":
        return None
    return value.item() if hasattr(value, "item") else value


def _ranks(rows: pd.DataFrame, arrival: int, landed: int | None) -> tuple[Rank, ...]:
    found = []
    for row in rows.to_dict("records"):
        known = {name: _plain(row[name]) for name in Rank._fields[1:] if name in row}
        known["completed_ns"] = known["done_ns"]
        if known["done_ns"] is not None and landed is not None:
            known["done_ns"] = min(known["done_ns"], landed)
        since = {name: None if ns is None else ns - arrival for name, ns in known.items()}
        stage = f"pp{row['pp_rank']}/" if row["pp_rank"] else ""
        found.append(Rank(f"{stage}tp{row['tp_rank']}", **since))
    return tuple(found)


def _last(spans: pd.DataFrame, arrival: int) -> LastSpan | None:
    ended = spans.sort_values(["end_ns", "start_ns", "name"]).to_dict("records")[-1:]
    for span in ended:
        where = span["engine_id"] or span["side"]
        return LastSpan(span["name"], where, span["end_ns"] - arrival, span["error_type"] or None)
    return None


def _lost(handoffs: Handoffs, spans: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """By side, what went wrong in the tries that do not count."""
    tries = handoffs.tries[~handoffs.tries["chosen"]]
    failed = spans[spans["try"].isin(tries.index) & spans["error"]]
    return {
        side: tuple(sorted(set(failed.loc[failed["side"] == side, "error_type"]) - {""}))
        for side in (SIDE_PREFILL, SIDE_DECODE)
    }
