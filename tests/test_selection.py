"""Which requests are looked at, and what a request looks like as one flat row."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from generator import EPOCH_NS, Rank, Shape, Writer, records

from pdtrace.analysis import phases
from pdtrace.analysis.flat import flat, write_csv, write_parquet
from pdtrace.analysis.handoffs import join
from pdtrace.analysis.report import request_records
from pdtrace.analysis.selection import Selection, select
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import build
from pdtrace.tracing import semconv as sc

SECOND = 10**9


@pytest.fixture(scope="module")
def mixed() -> Split:
    """Three requests a second apart, the last one in pull, and one that was aborted at once."""
    spans = []
    for number, mode in enumerate(("push", "push", "pull")):
        dispatch = "concurrent" if mode == "push" else "sequential"
        shape = Shape(mode=mode, dispatch=dispatch, start=number * SECOND)
        for one in records(shape, f"r-{number}"):
            size = {sc.TRANSFER_BYTES: 600} if "submit" in one.name else {}
            resource = dict(one.resource)
            if number == 1 and resource[sc.ROLE] == sc.ROLE_DECODE:
                resource[sc.ENGINE_ID] = "d-other"
            said = {**one.attributes, **size, sc.MODEL: f"model-{number}"}
            spans.append(replace(one, attributes=said, resource=resource))
    writer = Writer("gone", "push")
    writer.span(sc.SPAN_REQUEST, EPOCH_NS, EPOCH_NS + 9, status=2, error__type="aborted")
    return split(join(build([*spans, *writer.records])))


@pytest.mark.parametrize(
    "chosen, expected",
    [
        (Selection(), ["gone", "r-0", "r-1", "r-2"]),
        (Selection(since_ns=EPOCH_NS + SECOND), ["r-1", "r-2"]),
        (Selection(until_ns=EPOCH_NS + SECOND), ["gone", "r-0"]),
        (Selection(since_ns=EPOCH_NS + 1, until_ns=EPOCH_NS + SECOND + 1), ["r-1"]),
        (Selection(models=("model-0", "model-2")), ["r-0", "r-2"]),
        (Selection(modes=("pull",)), ["r-2"]),
        (Selection(engines=("d-other",)), ["r-1"]),
        (Selection(engines=("p-engine-0",), modes=("push",)), ["r-0", "r-1"]),
        (Selection(request_ids=("gone", "r-2", "nobody")), ["gone", "r-2"]),
        (Selection(models=("nobody's",)), []),
    ],
)
def test_a_request_is_selected_when_it_meets_every_condition(
    mixed: Split, chosen: Selection, expected: list[str]
) -> None:
    """What is selected is printed as it is without a selection."""
    every = {one["request_id"]: one for one in request_records(mixed)}
    found = list(request_records(select(mixed, chosen)))
    assert sorted(str(one["request_id"]) for one in found) == expected
    assert all(one == every[one["request_id"]] for one in found)


def test_a_flat_row_sums_to_ttft(mixed: Split) -> None:
    """Classes and exposed phases sum; nothing is 0 that is not known."""
    rows = flat(mixed).set_index("request_id")
    classes = rows[[f"{name}_ns" for name in phases.CLASSES]]
    exposed = rows[[f"exposed_{name}_ns" for name in phases.NAMES]]
    whole = rows.index != "gone"
    assert classes.sum(axis=1)[whole].tolist() == rows["ttft_ns"][whole].tolist()
    assert exposed.sum(axis=1)[whole].tolist() == rows["ttft_ns"][whole].tolist()
    gone = rows.loc["gone"]
    assert pd.isna(gone["ttft_ns"]) and pd.isna(gone["compute_ns"])
    assert rows.loc["gone", "flags"] == "aborted missing_decode missing_prefill"
    assert rows.loc["r-1", ["arrival_ns", "decode_engine"]].tolist() == [
        EPOCH_NS + SECOND,
        "d-other",
    ]


def test_a_transfer_has_a_rate_and_a_share_of_the_handover(mixed: Split) -> None:
    """600 bytes in 15 ns; from prefill end to the first token pass 36 ns, in pull 42."""
    rows = mixed.requests.loc[["r-0", "r-2"]]
    assert rows["transfer_ns"].tolist() == [15, 15]
    assert rows["bytes_per_s"].tolist() == [40 * SECOND] * 2
    assert (rows["wire_ratio"] * rows["handover_ns"]).round(9).tolist() == [15, 15]
    assert mixed.requests.loc["gone", ["transfer_ns", "bytes_per_s", "wire_ratio"]].isna().all()


def test_a_rate_over_several_transfers_is_not_known() -> None:
    """P read back from D before: the time of both, the bytes of one."""
    shape = Shape(mode="pull", dispatch="sequential", back=(Rank(),))
    row = split(join(build(records(shape)))).requests.iloc[0]
    assert row["transfer_ns"] == 30
    assert pd.isna(row["bytes_per_s"]) and pd.isna(row["wire_ratio"])


def test_files_give_the_frame_back(mixed: Split, tmp_path: Path) -> None:
    """Parquet with its types; CSV with an empty cell for what is not known."""
    frame = flat(mixed)
    write_parquet(tmp_path / "r.parquet", frame)
    write_csv(tmp_path / "r.csv", frame)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "r.parquet"), frame)
    as_text = pd.read_csv(tmp_path / "r.csv", dtype="str", keep_default_na=False)
    assert as_text["ttft_ns"].tolist() == ["" if pd.isna(v) else str(v) for v in frame["ttft_ns"]]
    assert list(as_text) == list(frame)
