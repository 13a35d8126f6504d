"""One of two tensor-parallel ranks fails its part of a transfer, on real engines."""

from pathlib import Path

import pytest
from engines import eventually
from faults import (
    P_SERVED,
    P_UNREAD,
    SERVER_ERROR,
    Pair,
    fault,
    settings,
    waited,
    warm_pair,
)

from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

TWO_RANKS = ("--tensor-parallel-size=2",)
BIND = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def expect_ranks(pair: Pair, request_id: str, name: str, expected: dict[int, str | None]) -> None:
    """Wait until there are just these spans of a name: TP rank to `error.type`.

    Each rank is a process, and sends its spans when it likes.
    """

    def by_rank() -> dict[object, object]:
        mine = [r for r in pair.records() if r.attributes[sc.REQUEST_ID] == request_id]
        return {
            span.resource[sc.TP_RANK]: span.attributes.get(sc.ERROR_TYPE)
            for span in mine
            if span.name == name
        }

    eventually(lambda: by_rank() == expected)
    assert by_rank() == expected


@pytest.mark.covers("rank-failed", "push", on="engines")
def test_one_rank_of_prefill_cannot_write(tmp_path: Path, engine_server: EngineServer) -> None:
    """The other rank's WRITE ends well, and is no success: the lease ran out, D waits in vain."""
    made = settings("push", tmp_path, layout="mp", prefill_flags=TWO_RANKS, env=BIND)
    with warm_pair(made, engine_server, tp_size=2) as pair:
        with fault(tmp_path, "transfer.prefill-0.1"):
            client = pair.connect(pair.d, "half", pair.told("half"))
            pair.prefill("half")
            pair.span("half", sc.SPAN_LEASE)
        late = waited(sc.ERROR_REGISTRATION_EXPIRED) | {sc.SPAN_REGISTRATION: ""}
        pair.expect_all("half", P_UNREAD | late)
        client.leave()
        expect_ranks(pair, "half", sc.SPAN_WRITE_SUBMIT, {0: None, 1: sc.ERROR_WRITE_FAILED})
        expect_ranks(pair, "half", sc.SPAN_WRITE_COMPLETE, {0: None})


@pytest.mark.covers("rank-failed", "pull", on="engines")
def test_one_rank_of_decode_cannot_read(tmp_path: Path, engine_server: EngineServer) -> None:
    """The other rank's READ ends well, and the request fails for the one that did not."""
    made = settings("pull", tmp_path, layout="mp", decode_flags=TWO_RANKS, env=BIND)
    with warm_pair(made, engine_server) as pair:
        params = pair.prefill("half")
        with fault(tmp_path, "transfer.decode-0.1"):
            assert pair.decode("half", params) == SERVER_ERROR
        pair.expect_all("half", P_SERVED | waited(sc.ERROR_READ_FAILED))
        expect_ranks(pair, "half", sc.SPAN_READ_SUBMIT, {0: None, 1: sc.ERROR_READ_FAILED})
        expect_ranks(pair, "half", sc.SPAN_READ_COMPLETE, {0: None})
