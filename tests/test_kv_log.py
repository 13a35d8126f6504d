"""vLLM's proposed lifecycle log of KV connectors as an input: read, joined, and of lower grade.

`data/kv_log_*.log` are the logs of a P and a D that serve four requests, times by hand:

    A push  registration 12-16 | prefill end 200, matched 204.5, WRITE 207-238 (seen on D)
    B push  prefill end 1200 | registration 1215-1230, matched 1230.25, WRITE 1232-1250
    C pull  prefill end 2300 | blocks 2312, READ 2318-2390
    F pull  prefill end 3300 | blocks 3305, READ 3307, failed 3312
"""

import gzip
import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from generator import EPOCH_NS, Shape, Writer, records

from pdtrace.analysis.handoffs import join
from pdtrace.analysis.records import SpanRecord
from pdtrace.analysis.report import request_records
from pdtrace.analysis.split import split
from pdtrace.analysis.store import SpanBatch, read_spans
from pdtrace.analysis.table import build
from pdtrace.analysis.tabulate import tabulate
from pdtrace.tracing import semconv as sc

DATA = Path(__file__).parent / "data"
LOGS = [DATA / "kv_log_prefill.log", DATA / "kv_log_decode.log"]
EXPECTED = json.loads((DATA / "kv_log.expected.json").read_text())["requests"]
MS = 1_000_000


def said(spans: list[SpanRecord]) -> dict[str, dict[str, Any]]:
    """The JSON objects by request id."""
    return {str(one["request_id"]): one for one in request_records(split(join(build(spans))))}


def read(*files: Path) -> SpanBatch:
    return read_spans(files)


def test_a_fleet_with_the_log_alone_gets_its_phases() -> None:
    """No TTFT, which nobody measured, and nothing between hosts pretended to be exact."""
    found = said(read(*LOGS).records)
    assert {one["request_id"]: one for one in EXPECTED} == {
        request_id: {name: one[name] for name in EXPECTED[0]} for request_id, one in found.items()
    }


def test_order_copies_and_form_of_the_lines_change_nothing(tmp_path: Path) -> None:
    """One file of bare JSON, shuffled, every line twice, compressed: the same four requests."""
    lines = [line for log in LOGS for line in log.read_text().splitlines() if "LIFECYCLE" in line]
    bare = [line[line.index("{") :] for line in lines] * 2
    Random(5).shuffle(bare)
    path = tmp_path / "all.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(bare).encode()))
    batch = read(path)
    assert tabulate([path]).notes == ["dropped 27 spans that came again with the same content"]
    assert said(batch.records) == said(read(*LOGS).records)


def test_a_cut_last_line_costs_itself_only(tmp_path: Path) -> None:
    """It is said; ordinary lines of the log are counted, not called unreadable."""
    text = LOGS[0].read_text()
    path = tmp_path / "cut.log"
    path.write_text(text + [line for line in text.splitlines() if "LIFECYCLE" in line][-1][:-40])
    batch = read(path)
    assert batch.records == read(LOGS[0]).records
    assert batch.notes == [
        f"{path} ends inside a message, which was skipped",
        f"{path}: passed over 2 other lines of the log",
    ]


@pytest.mark.parametrize(
    "change",
    [{"wall_ns": "soon"}, {"request_id_hash": None}, {"event": 3}, {"wall_ns": 77_000_000}],
    ids=["time", "id", "event", "monotonic time for wall time"],
)
def test_a_broken_event_is_refused_and_counted(change: dict[str, Any], tmp_path: Path) -> None:
    """It never becomes a number."""
    good = next(line for line in LOGS[0].read_text().splitlines() if "LIFECYCLE" in line)
    event = json.loads(good[good.index("{") :])
    path = tmp_path / "one.log"
    path.write_text(f"{good}\n{good[: good.index('{')]}{json.dumps(event | change)}\n")
    batch = read(path)
    assert (len(batch.records), sum(batch.rejected.values())) == (1, 1)


def routed(request_id: str) -> list[SpanRecord]:
    """What our router alone would say of A: received at -50 ms, first token at 300 ms."""
    writer = Writer(request_id, "push")
    token = ((sc.EVENT_FIRST_TOKEN, EPOCH_NS + 300 * MS),)
    span = (EPOCH_NS - 50 * MS, EPOCH_NS + 900 * MS)
    writer.span(sc.SPAN_REQUEST, *span, events=token, pd__dispatch="concurrent")
    return writer.records


def test_with_our_router_the_phases_become_a_split() -> None:
    """The router's id is hashed as vLLM would; what nobody saw stays unattributed."""
    found = said([*routed("5c1e-0001"), *read(*LOGS).records])
    assert len(found) == 4
    one = found["5c1e-0001"]
    known = {"registration": 4 * MS, "match": 4_500_000, "submit": 2_500_000, "transfer": 31 * MS}
    rest = 350 * MS - sum(known.values())
    assert (one["ttft_ns"], one["phases"]) == (350 * MS, known | {"unattributed": rest})
    assert (one["evidence"], one["outcome"]) == ("own", "ok")
    assert one["flags"] == ["clocks_not_known", "foreign_evidence"]


def logged(event: str, at: int, side: str, engine_id: str, **more: str) -> dict[str, Any]:
    """A line's object; the time counts from the tests' epoch (ns)."""

    def hashed(text: str) -> str:
        return hashlib.blake2b(text.encode(), digest_size=8, person=b"vllm-kv-trace").hexdigest()

    return {
        "schema": "vllm-kv-connector-v1",
        "event": event,
        "wall_ns": EPOCH_NS + at,
        "transfer_mode": "pull",
        "role": side,
        "request_id_hash": hashed(engine_id),
        "request_group_id_hash": hashed(engine_id[:-9]),
        **{name: hashed(text) for name, text in more.items()},
    }


def events(folder: Path, *lines: dict[str, Any]) -> list[SpanRecord]:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read(path).records


PULL = Shape(mode="pull", dispatch="sequential", peers=True)
BOTH = "cmpl-r-1-0-00000000"


def test_where_our_own_spans_speak_the_log_changes_nothing(tmp_path: Path) -> None:
    """The same requests by their engine ids, with other times: ours win, and nobody is added."""
    lines = events(
        tmp_path,
        logged("transfer_staged", 7, "producer", BOTH),
        logged("transfer_staged", 8, "consumer", BOTH),
        logged("transfer_started", 9, "consumer", BOTH),
        logged("transfer_completed", 10, "consumer", BOTH),
    )
    assert said(records(PULL) + lines) == said(records(PULL))


def test_the_log_fills_in_for_a_side_that_we_do_not_trace(tmp_path: Path) -> None:
    """D is ours, P has the log: prefill end is known, and with it where the hop began."""
    ours = [s for s in records(PULL) if s.resource[sc.ROLE] != sc.ROLE_PREFILL]
    end = PULL.ingress + PULL.queue + PULL.prefill
    found = said(ours + events(tmp_path, logged("transfer_staged", end, "producer", BOTH)))["r-1"]
    assert (found["phases"]["hop"], found["phases"]["unattributed"]) == (PULL.hop, end)
    assert found["flags"] == ["clocks_not_known", "foreign_evidence"]
    assert found["handover_ns"] == said(records(PULL))["r-1"]["handover_ns"]
