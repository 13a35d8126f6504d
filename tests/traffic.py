"""Traffic for triage, drawn as frames: healthy requests with natural spread, and planted faults."""

from dataclasses import replace

import numpy as np
import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.coded import decoded
from pdtrace.analysis.table import SPAN_COLUMNS
from pdtrace.analysis.triage_traffic import RANKED, Traffic, standing
from pdtrace.tracing import semconv as sc

START_NS = 1_795_946_400_000_000_000
MS = 1_000_000
MEANS_MS = {
    phases.INGRESS: 1.0,
    phases.PREFILL_QUEUE: 8.0,
    phases.PREFILL: 60.0,
    phases.MATCH: 2.0,
    phases.SUBMIT: 1.5,
    phases.TRANSFER: 6.0,
    phases.LANDED_TO_SEEN: 8.0,
    phases.REQUEUE: 1.0,
    phases.FIRST_DECODE: 16.0,
    phases.EGRESS: 1.0,
}
_NO_INSTANT = (
    "back_told_ns",
    "attempted_ns",
    "allocated_ns",
    "received_ns",
    "rank_straggle_ns",
    "d_token_ns",
    "external_tokens",
)


def healthy(
    count: int,
    seed: int,
    prefill_engines: int = 2,
    decode_engines: int = 4,
    seconds: float = 600.0,
    tokens: tuple[int, ...] = (512,),
) -> Traffic:
    """`count` push requests with concurrent dispatch, spread over engines and time by chance.

    Phases are gamma-distributed around `MEANS_MS`; prefill grows with the prompt.
    """
    random = np.random.default_rng(seed)
    index = pd.Index([f"r-{n}" for n in range(count)], name="request_id", dtype="str")
    length = random.choice(np.array(tokens), count)
    exposed = pd.DataFrame(0, index=index, columns=list(phases.NAMES), dtype="int64")
    for name, mean in MEANS_MS.items():
        scale = length / 512 if name == phases.PREFILL else 1.0
        drawn = random.gamma(9.0, mean * MS / 9.0, count) * scale
        exposed[name] = drawn.astype(np.int64)
    at = START_NS + np.sort(random.uniform(0, seconds * 1e9, count)).astype(np.int64)
    rows = _rows(random, index, prefill_engines, decode_engines).assign(
        t0_ns=pd.array(at, dtype="Int64"),
        input_tokens=pd.array(length, dtype="Int64"),
        transfer_bytes=pd.array(length * 16_384, dtype="Int64"),
    )
    return _whole(rows, exposed, empty_spans())


def _rows(random: np.random.Generator, index: pd.Index, p: int, d: int) -> pd.DataFrame:
    count = len(index)
    p_engine = pd.Series(random.integers(0, p, count), index=index).map(lambda n: f"p-{n}")
    d_engine = pd.Series(random.integers(0, d, count), index=index).map(lambda n: f"d-{n}")
    same = {
        "id": index.to_series(),
        "instance": 1,
        "mode": sc.MODE_PUSH,
        "dispatch": sc.DISPATCH_CONCURRENT,
        "model": "m",
        "slowest_rank": "",
        "outcome": "ok",
        "lower_bound": False,
        "local": False,
        "loads": True,
    }
    rows = pd.DataFrame(same, index=index)
    rows = rows.assign(
        prefill_engine=p_engine.astype("str"),
        decode_engine=d_engine.astype("str"),
        prefill_host="host-" + p_engine.astype("str"),
        decode_host="host-" + d_engine.astype("str"),
        flags=pd.Series([()] * count, index=index, dtype="object"),
        prefill_cached_tokens=pd.array([0] * count, dtype="Int64"),
        transfer_descriptors=pd.array([256] * count, dtype="Int64"),
        prefill_gap_ns=pd.array([0] * count, dtype="Int64"),
        tpot_ns=pd.array([16 * MS] * count, dtype="Int64"),
        clock_halfwidth_ns=pd.array([0] * count, dtype="Int64"),
    )
    return rows.assign(**{name: pd.array([pd.NA] * count, dtype="Int64") for name in _NO_INSTANT})


def empty_spans() -> pd.DataFrame:
    """Own spans, none of them."""
    columns = {column.name: pd.Series(dtype=column.dtype) for column in SPAN_COLUMNS}
    return decoded(pd.DataFrame(columns)).assign(side="", id="")


def _whole(rows: pd.DataFrame, exposed: pd.DataFrame, spans: pd.DataFrame) -> Traffic:
    ttft = exposed.sum(axis=1).astype("Int64")
    rows = rows.assign(ttft_ns=ttft, t1_ns=rows["t0_ns"] + ttft)
    rows = rows.assign(standing=standing(rows, exposed.index))
    return Traffic(rows, exposed, exposed * 0, exposed.copy(), spans)


def longer(traffic: Traffic, phase: str, where: pd.Series, by_ms: float) -> Traffic:
    """The phase takes `by_ms` more, give or take a fifth, in the requests of `where`."""
    random = np.random.default_rng(len(traffic))
    exposed = traffic.exposed.copy()
    more = random.normal(by_ms, by_ms / 5, len(exposed)).clip(min=0) * MS
    exposed[phase] += np.where(where.to_numpy(np.bool_), more, 0).astype(np.int64)
    return _whole(traffic.requests, exposed, traffic.spans)


def with_flag(traffic: Traffic, flag: str, where: pd.Series) -> Traffic:
    """These requests have one flag more."""
    flags = [
        (*held, flag) if more else held
        for held, more in zip(traffic.requests["flags"], where.tolist(), strict=True)
    ]
    rows = traffic.requests.assign(
        flags=pd.Series(flags, index=traffic.requests.index, dtype="object")
    )
    return _whole(rows, traffic.exposed, traffic.spans)


def with_columns(traffic: Traffic, **columns: pd.Series) -> Traffic:
    """The rows with these columns instead."""
    return replace(traffic, requests=traffic.requests.assign(**columns))


def on(traffic: Traffic, **values: str) -> pd.Series:
    """Which requests have all these values? (bool)"""
    rows = traffic.requests
    mask = pd.Series(True, index=rows.index)
    for name, value in values.items():
        mask &= rows[name] == value
    return mask


def some(traffic: Traffic, share: float, seed: int = 5) -> pd.Series:
    """A random share of the requests. (bool)"""
    drawn = np.random.default_rng(seed).random(len(traffic)) < share
    return pd.Series(drawn, index=traffic.requests.index)


def all_ranked(traffic: Traffic) -> bool:
    """Whether every request may be compared."""
    return bool((traffic.requests["standing"] == RANKED).all())
