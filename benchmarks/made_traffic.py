"""Made traffic of any size: push requests through a router, 16 spans each, drawn at random.

The instants of each request are drawn, then spans are written from them, a column at a time.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pdtrace.analysis.columns import EVENT_SCHEMA, SPAN_SCHEMA, Batch
from pdtrace.tracing import semconv as sc

Ints = npt.NDArray[np.int64]

BEGIN_NS: Final = 1_795_946_400_000_000_000
PREFILLS, DECODES = 4, 4
CLOCK: Final = "5a0f3c1e-7d52-4c7e-9d30-6f1b2a9c0a01"
CONFIG: Final = '{"block_size":16,"dtype":"float16","model":"demo-8b","vllm":"0.32.0"}'
_MEANS_MS: Final = {
    "ingress": 1, "queue": 20, "prefill": 250, "handing": 2, "hop": 1, "admission": 2,
    "capacity": 1, "registration": 3, "wait": 1, "submit": 1, "transfer": 12, "seen": 6,
    "requeue": 2, "first_decode": 12, "egress": 1, "decode": 900,
}  # fmt: skip
"""Means of exponential waits."""


def instants(count: int, seed: int) -> dict[str, Ints]:
    """When everything happens in `count` requests, 50 of which come each second (Unix ns)."""
    random = np.random.default_rng(seed)
    took = {
        name: (random.exponential(mean, count) * 1e6).astype(np.int64) + 1
        for name, mean in _MEANS_MS.items()
    }
    at = {"t0": BEGIN_NS + np.cumsum(random.exponential(2e7, count).astype(np.int64))}
    at["p_has"] = at["t0"] + took["ingress"]
    at["p_scheduled"] = at["p_has"] + took["queue"]
    at["p_end"] = at["p_scheduled"] + took["prefill"]
    at["handed"] = at["p_end"] + took["handing"]
    at["d_has"] = at["t0"] + took["hop"]
    at["attempted"] = at["d_has"] + took["admission"]
    at["allocated"] = at["attempted"] + took["capacity"]
    at["received"] = at["allocated"] + took["registration"]
    at["both"] = np.maximum(at["received"], at["handed"])
    at["begin"] = at["both"] + took["wait"]
    at["posted"] = at["begin"] + took["submit"]
    at["done"] = at["posted"] + took["transfer"]
    at["told"] = at["done"] + took["seen"]
    at["scheduled"] = at["told"] + took["requeue"]
    at["token"] = at["scheduled"] + took["first_decode"]
    at["t1"] = at["token"] + took["egress"]
    at["end"] = at["t1"] + took["decode"]
    return at


_ROUTER: Final = "router"
_P: Final = sc.ROLE_PREFILL
_D: Final = sc.ROLE_DECODE
SPANS: Final[tuple[tuple[str, str, str, str], ...]] = (
    (sc.SPAN_REQUEST, _ROUTER, "t0", "end"),
    (sc.SPAN_LEG, _ROUTER, "t0", "handed"),
    (sc.SPAN_LEG, _ROUTER, "t0", "end"),
    (sc.SPAN_PREFILL_QUEUE, _P, "p_has", "p_scheduled"),
    (sc.SPAN_PREFILL, _P, "p_scheduled", "p_end"),
    (sc.SPAN_PREFILL_END, _P, "p_end", "handed"),
    (sc.SPAN_MATCH, _P, "received", "both"),
    (sc.SPAN_WRITE_SUBMIT, _P, "begin", "posted"),
    (sc.SPAN_WRITE_COMPLETE, _P, "posted", "done"),
    (sc.SPAN_LEASE, _P, "p_end", "told"),
    (sc.SPAN_DECODE_ADMISSION, _D, "d_has", "allocated"),
    (sc.SPAN_REGISTRATION, _D, "allocated", "received"),
    (sc.SPAN_KV_WAIT, _D, "allocated", "told"),
    (sc.SPAN_DECODE_START, _D, "told", "scheduled"),
    (sc.SPAN_FIRST_DECODE, _D, "scheduled", "token"),
    (sc.SPAN_DECODE, _D, "token", "end"),
)
"""Name, process, start, end; in this order the first leg is prefill's."""
EVENTS: Final = (
    (sc.SPAN_REQUEST, sc.EVENT_FIRST_TOKEN, "t1"),
    (sc.SPAN_MATCH, sc.EVENT_REGISTRATION_RECEIVED, "received"),
    (sc.SPAN_DECODE_ADMISSION, sc.EVENT_FIRST_ATTEMPT, "attempted"),
    (sc.SPAN_KV_WAIT, sc.EVENT_NOTIFICATION_SEEN, "done"),
)
PER_REQUEST: Final = len(SPANS)


def arrow_tables(count: int, seed: int = 1) -> Batch:
    """Spans (`SPAN_SCHEMA`, 16 rows a request) and their events (`EVENT_SCHEMA`)."""
    at = instants(count, seed)
    starts, ends = (np.column_stack([at[span[side]] for span in SPANS]) for side in (2, 3))
    matched = [span[0] for span in SPANS].index(sc.SPAN_MATCH)
    starts[:, matched] = np.minimum(starts[:, matched], at["handed"])
    columns = {"start_ns": starts.ravel(), "end_ns": ends.ravel(), **_texts(count, seed)}
    columns |= _sizes(count, seed)
    rows = count * PER_REQUEST
    spans = pa.table(
        {field.name: columns.get(field.name, _absent(field, rows)) for field in SPAN_SCHEMA}
    ).cast(SPAN_SCHEMA)
    return Batch(spans, _events(at, count))


def _absent(field: pa.Field, rows: int) -> pa.Array:
    if pa.types.is_boolean(field.type):
        return pa.array(np.zeros(rows, dtype=np.bool_))
    if pa.types.is_integer(field.type):
        never = field.name.endswith("_rank")
        return pa.array(np.zeros(rows, np.int64)) if never else pa.nulls(rows, pa.int64())
    return _named(np.zeros(rows, np.int32), [""])


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names))


def _texts(count: int, seed: int) -> dict[str, pa.Array]:
    """Ids and names: by request, by kind of span, by engine."""
    request = np.repeat(np.arange(count), PER_REQUEST)
    kind = np.tile(np.arange(PER_REQUEST), count)
    random = np.random.default_rng([seed, 1])
    ids = [random.bytes(16).hex() for _ in range(count)]
    engines = [f"prefill-{i}" for i in range(PREFILLS)] + [f"decode-{i}" for i in range(DECODES)]
    process = np.array([[_ROUTER, _P, _D].index(span[1]) for span in SPANS])[kind]
    drawn = [random.integers(n, size=count)[request] for n in (PREFILLS, DECODES)]
    engine = np.select([process == 1, process == 2], [drawn[0], drawn[1] + PREFILLS], len(engines))
    base = [f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in ids]
    # Two internal ids a request, P's and D's; the router's spans have none.
    legs = [f"cmpl-{name}-0-{i:08x}" for i, name in enumerate(base)]
    legs += [f"cmpl-{name}-0-{i + count:08x}" for i, name in enumerate(base)]
    leg = np.select([process == 1, process == 2], [request, request + count], 2 * count)
    pushing = np.isin(kind, [SPANS.index(s) for s in SPANS if s[0] in _NAMES_PEER])
    parents = np.array([-1, 0, 0, *(2 if span[1] == _D else 1 for span in SPANS[3:])])[kind]
    span_ids = [f"{i:016x}" for i in range(1, count * PER_REQUEST + 1)]
    numbers = np.arange(count * PER_REQUEST)
    parent = np.where(parents < 0, len(span_ids), request * PER_REQUEST + parents)
    only = {name: np.isin(kind, places) for name, places in _ONLY.items()}
    return {
        "trace_id": _named(request, ids),
        "span_id": pa.array(np.array(span_ids, dtype=object)[numbers]),
        "parent_id": pa.array(np.array([*span_ids, ""], dtype=object)[parent]),
        "name": _named(kind, [span[0] for span in SPANS]),
        "request_id": _named(request, base),
        "engine_request_id": _named(leg, [*legs, ""]),
        "peer_engine_request_id": _named(
            np.where(pushing, request + count, 2 * count), [*legs, ""]
        ),
        "engine_id": _named(engine, [*engines, ""]),
        "instance_id": _named(engine, [*(f"{name}-1" for name in engines), "router-1"]),
        "host": _named(np.zeros_like(kind), ["node-a"]),
        "config": _named((process == 0).astype(np.int64), [CONFIG, ""]),
        "model": _named(np.zeros_like(kind), ["demo-8b"]),
        "role": _named(process, [sc.ROLE_ROUTER, _P, _D]),
        "clock_id": _named(np.zeros_like(kind), [CLOCK]),
        "mode": _named(np.zeros_like(kind), [sc.MODE_PUSH]),
        "dispatch": _named(only["request"].astype(np.int64), ["", sc.DISPATCH_CONCURRENT]),
        "leg": _named(only["p_leg"] + 2 * only["d_leg"], ["", "prefill", "decode"]),
        "match_first": _named(only["match"].astype(np.int64), ["", sc.MATCH_REGISTRATION]),
        "lease_outcome": _named(only["lease"].astype(np.int64), ["", sc.LEASE_WRITTEN]),
    }


_NAMES_PEER: Final = (sc.SPAN_MATCH, sc.SPAN_WRITE_SUBMIT, sc.SPAN_WRITE_COMPLETE)
_PLACES: Final = {span[0]: place for place, span in enumerate(SPANS)}
_ONLY: Final = {
    "request": [0], "p_leg": [1], "d_leg": [2],
    "match": [_PLACES[sc.SPAN_MATCH]], "lease": [_PLACES[sc.SPAN_LEASE]],
}  # fmt: skip


def _sizes(count: int, seed: int) -> dict[str, pa.Array]:
    """Tokens and bytes of each request, on the spans that name them."""
    random = np.random.default_rng([seed, 2])
    prompt = random.integers(64, 8192, count)
    said = {
        "input_tokens": ((sc.SPAN_PREFILL, sc.SPAN_DECODE_ADMISSION), prompt),
        "cached_tokens": ((sc.SPAN_PREFILL,), np.zeros_like(prompt)),
        "external_tokens": ((sc.SPAN_KV_WAIT,), prompt - 1),
        "output_tokens": ((sc.SPAN_DECODE,), random.integers(2, 512, count)),
        "transfer_bytes": ((sc.SPAN_WRITE_SUBMIT,), prompt * 131072),
        "transfer_descriptors": ((sc.SPAN_WRITE_SUBMIT,), prompt // 16 + 1),
        "attempt": ((sc.SPAN_LEG,), np.ones_like(prompt)),
    }
    kind = np.tile(np.arange(PER_REQUEST), count)
    columns = {}
    for name, (where, values) in said.items():
        here = np.isin(kind, [place for place, span in enumerate(SPANS) if span[0] in where])
        columns[name] = pa.array(np.repeat(values, PER_REQUEST), mask=~here)
    return columns


def _events(at: dict[str, Ints], count: int) -> pa.Table:
    first = np.arange(count) * PER_REQUEST
    rows = np.column_stack([first + _PLACES[span] for span, _, _ in EVENTS]).ravel()
    times = np.column_stack([at[when] for *_, when in EVENTS]).ravel()
    kind = np.tile(np.arange(len(EVENTS)), count)
    ranked = np.array([name == sc.EVENT_NOTIFICATION_SEEN for _, name, _ in EVENTS])[kind]
    table = {
        "row": pa.array(rows),
        "name": _named(kind, [name for _, name, _ in EVENTS]),
        "time_ns": pa.array(times),
        "peer_rank": pa.array(np.zeros(len(rows), np.int64), mask=~ranked),
    }
    return pa.table(table).cast(EVENT_SCHEMA)
