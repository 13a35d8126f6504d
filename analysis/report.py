"""Results as text tables and JSON lines; the words for what is not known are chosen here."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.arrays import Ints
from pdtrace.analysis.rows import RequestRow, request_rows
from pdtrace.analysis.split import Split
from pdtrace.analysis.summary import MEASURES, PERCENTS, TPOT, Summary

TOO_FEW: Final = "too few"
NOT_KNOWN: Final = "–"
AT_LEAST: Final = ">= "


@dataclass(frozen=True)
class Table:
    """A titled table of text: one tuple per row, as long as `header`."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def milliseconds(ns: int | None, at_least: bool = False) -> str:
    """Nanoseconds as milliseconds with three decimals, `>=` before a lower bound."""
    if ns is None:
        return NOT_KNOWN
    return f"{AT_LEAST if at_least else ''}{ns / 1e6:,.3f}"


def json_lines(split: Split) -> Iterator[bytes]:
    """One JSON object per request, sorted by arrival; integers in ns, null = not known."""
    for record in request_records(split):
        yield orjson.dumps(record)


def request_records(split: Split) -> Iterator[dict[str, object]]:
    """The JSON objects of `json_lines`."""
    place = {label: at for at, label in enumerate(split.splittable)}
    classes, exposed, hidden, drag = (
        frame.to_numpy(np.int64)
        for frame in (split.classes, split.exposed, split.hidden, split.drag)
    )
    known = dict(zip(split.known.index, split.known.to_numpy(np.int64), strict=True))
    for label, row in request_rows(split.requests):
        at = place.get(label)
        yield {
            "request_id": row.id,
            "instance": row.instance,
            "trace_id": row.trace_id,
            "mode": row.mode,
            "prefill_engine": row.prefill_engine,
            "decode_engine": row.decode_engine,
            "ttft_ns": row.ttft_ns,
            "lower_bound": row.lower_bound,
            "classes": None if at is None else _named(phases.CLASSES, classes[at]),
            "phases": None if at is None else _nonzero(exposed[at]),
            "hidden": None if at is None else _nonzero(hidden[at]),
            "handover_ns": row.handover_ns,
            "tpot_ns": row.tpot_ns,
            "output_tokens": row.output_tokens,
            "clock_halfwidth_ns": row.clock_halfwidth_ns,
            "rank_straggle_ns": row.rank_straggle_ns,
            "slowest_rank": row.slowest_rank,
            "outcome": row.outcome,
            "flags": list(row.flags),
            "dispatch": row.dispatch,
            "drag_ns": None if at is None else _nonzero(drag[at]),
            "evidence": row.evidence,
            "known_phases_ns": None if label not in known else _nonzero(known[label]),
            **{name: getattr(row, name) for name in _FACTS},
            "reason": row.reason,
        }


_FACTS: Final = (
    "model",
    "input_tokens",
    "prefill_cached_tokens",
    "external_tokens",
    "transfer_bytes",
    "transfer_descriptors",
    "transfer_ns",
    "bytes_per_s",
    "wire_ratio",
)


def _named(names: Sequence[str], values: Ints) -> dict[str, int]:
    return dict(zip(names, values.tolist(), strict=True))


def _nonzero(values: Ints) -> dict[str, int]:
    """Phases that took time, in reading order, ns."""
    by_name = _named(phases.NAMES, values)
    return {name: by_name[name] for name in phases.READING_ORDER if by_name[name]}


def quantile_table(summary: Summary) -> Table:
    """TTFT, its classes and TPOT by mode; 95 % intervals in brackets."""
    rows = [
        (row["mode"], LABELS[row["measure"]], str(row["count"]), *_quantile_cells(row, PERCENTS))
        for row in summary.quantiles.to_dict("records")
    ]
    header = ("mode", "what", "count", *(f"p{percent}" for percent in PERCENTS))
    title = "Time to first token by mode, ms (95 % interval; quantiles do not add up)"
    return Table(title, header, rows)


def kind_table(summary: Summary) -> Table:
    """The same by pair of engines, prompt length and prefix cache, where there are several."""
    kinds = summary.kinds.groupby("by")["kind"].nunique()
    several = summary.kinds[summary.kinds["by"].isin(kinds[kinds > 1].index)]
    shown = (50, 95)
    rows = [
        (
            row["mode"],
            f"{row['by']}: {row['kind']}",
            LABELS[row["measure"]],
            str(row["count"]),
            *_quantile_cells(row, shown),
        )
        for row in several.to_dict("records")
    ]
    header = ("mode", "requests", "what", "count", *(f"p{percent}" for percent in shown))
    return Table("Time to first token by kind of request, ms (95 % interval)", header, rows)


def _quantile_cells(row: Mapping[Hashable, Any], percents: Sequence[int]) -> Iterator[str]:
    """Value and interval of each quantile; an end that the sample cannot give is left open."""
    for percent in percents:
        value, low, high = (
            None if pd.isna(ns) else int(ns)
            for ns in (row[f"p{percent}{end}_ns"] for end in ("", "_low", "_high"))
        )
        if value is None:
            yield TOO_FEW if row["count"] else NOT_KNOWN
            continue
        yield f"{milliseconds(value, row['at_least'])}{_interval(low, high)}"


def _interval(low: int | None, high: int | None) -> str:
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f" (≤ {high / 1e6:,.1f})" if high is not None else f" (≥ {(low or 0) / 1e6:,.1f})"
    return f" ({low / 1e6:,.1f}–{high / 1e6:,.1f})"


LABELS: Final = {
    **{measure: measure for measure in MEASURES},
    "ttft": "TTFT",
    "compute": "compute wait",
    "coordination": "coordination wait",
    TPOT: "TPOT",
}


def phase_table(summary: Summary) -> Table:
    """The mean of each phase by mode: exposed, and hidden in brackets. These add up."""
    modes = list(summary.exposed_sums.index)
    counts = summary.counts.loc[modes, "split"]
    rows = []
    for name in phases.READING_ORDER:
        exposed, hidden = summary.exposed_sums[name], summary.hidden_sums[name]
        if not (exposed.any() or hidden.any()):
            continue
        cells = [_mean_cell(int(exposed[m]), int(hidden[m]), int(counts[m])) for m in modes]
        rows.append((phases.CLASS_OF[name], name, *cells))
    if modes:
        rows.append(("", "TTFT", *(mean_ttft(summary, mode) for mode in modes)))
    header = ("class", "phase", *(f"{m} (n={counts[m]})" for m in modes))
    return Table("Mean of each phase, ms (means add up; hidden in brackets)", header, rows)


def mean_ttft(summary: Summary, mode: str) -> str:
    """The mean TTFT of a mode in ms, `>=` when one of its requests is a lower bound."""
    total = int(summary.exposed_sums.T[mode].sum())
    sign = AT_LEAST if summary.counts["lower_bounds"][mode] else ""
    return sign + milliseconds_mean(total, int(summary.counts["split"][mode]))


def milliseconds_mean(total_ns: int, count: int) -> str:
    """A mean in ms from an exact sum."""
    return f"{total_ns / count / 1e6:,.3f}"


def _mean_cell(exposed: int, hidden: int, count: int) -> str:
    shown = milliseconds_mean(exposed, count)
    return f"{shown} ({milliseconds_mean(hidden, count)})" if hidden else shown


def count_sentences(summary: Summary) -> list[str]:
    """What is shown and what is not, one sentence per mode."""
    sentences = []
    for mode, row in summary.counts.iterrows():
        noun = "request" if row["requests"] == 1 else "requests"
        parts = [f"{mode}: {row['requests']} {noun}, {row['split']} split"]
        for key, words in _COUNT_WORDS.items():
            if row[key]:
                parts.append(f"{row[key]} {words}")
        sentences.append(", ".join(parts))
    return sentences


_COUNT_WORDS: Final = {
    "no_first_token": "without a first token",
    "aborted": "of these aborted",
    "token_not_known": "whose first token is not known",
    "phantoms": "after which vLLM made an empty one of its own",
    "not_split": "not split (see flags)",
    "lease_expired": "with a lease that expired before the data landed (kept out of latencies)",
    "lower_bounds": "whose TTFT is a lower bound",
}


def known_table(summary: Summary) -> Table:
    """What is known of requests without a TTFT: the mean of each phase over those that have it."""
    names = ("mode", "phase", "count", "total_ns")
    rows = [
        (mode, phases.CLASS_OF[phase], phase, str(count), milliseconds_mean(total, count))
        for mode, phase, count, total in zip(
            *(summary.known[name].tolist() for name in names), strict=True
        )
    ]
    title = "Known phases of requests without a TTFT, ms"
    return Table(title, ("mode", "class", "phase", "requests", "mean"), rows)


def outcome_table(summary: Summary) -> Table:
    """How the requests ended, counted; every request is in it."""
    columns = (summary.outcomes[name].astype("str") for name in ("mode", "outcome", "count"))
    rows = list(zip(*columns, strict=True))
    return Table("Outcomes", ("mode", "outcome", "requests"), rows)


def rank_table(split: Split) -> Table:
    """Ranks that were the last to finish, by how often: only where several ranks took part."""
    known = split.requests[["slowest_rank", "rank_straggle_ns"]]
    known = known[known["slowest_rank"] != ""]
    by_rank = known.groupby("slowest_rank")["rank_straggle_ns"]
    sums, counts, most = by_rank.sum(), by_rank.size(), by_rank.max()
    order = counts.sort_values(ascending=False, kind="stable").index
    rows = [
        (
            str(rank),
            str(counts[rank]),
            milliseconds_mean(int(sums[rank]), int(counts[rank])),
            milliseconds(int(most[rank])),
        )
        for rank in order
    ]
    header = ("rank", "requests", "mean", "most")
    return Table("Slowest ranks: behind the median of the ranks, ms", header, rows)


def _first_token(row: RequestRow) -> str:
    if row.t1_ns is None:
        return NOT_KNOWN if row.outcome is None else "no first token"
    return milliseconds(row.ttft_ns, row.lower_bound)


def flagged_table(split: Split, limit: int = 20) -> Table:
    """Requests with flags, or without a first token: at most `limit` of them."""
    requests = split.requests
    flagged = requests["flags"].to_numpy().astype(np.bool_)
    marked = np.flatnonzero(flagged | requests["t1_ns"].isna())
    shown = [
        (
            row.name,
            row.mode or NOT_KNOWN,
            _first_token(row),
            row.outcome or NOT_KNOWN,
            ", ".join(row.flags),
        )
        for _, row in request_rows(requests.iloc[marked[:limit]])
    ]
    more = len(marked) - len(shown)
    title = f"Flags ({more} more not shown)" if more > 0 else "Flags"
    return Table(title, ("request", "mode", "TTFT, ms", "outcome", "flags"), shown)
