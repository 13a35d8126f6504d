"""The split of a spans table in Parquet, part by part, on the processes of an executor.

A part holds whole requests (`partitions`), so the functions of the local split are run on each as
they are, and what comes out is put together (`whole`). Only the offsets between clocks need all
parts at once: a first round gathers what each says of them.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import add

import numpy as np
import pandas as pd

from pdtrace.analysis.account import Account, Refused
from pdtrace.analysis.alignment import Testimony, clocks_of, testimony
from pdtrace.analysis.anchors import on_one_anchor
from pdtrace.analysis.clocks import Clocks
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.load import handoffs_of
from pdtrace.analysis.parquet import read_rows
from pdtrace.analysis.partitions import Division, Part
from pdtrace.analysis.split import Split, split
from pdtrace.analysis.table import Copies, SpansTable, TableBuilder
from pdtrace.analysis.whole import together

Also = Callable[[Handoffs, Split], pd.DataFrame]
"""What a command needs of a part beside its split: rows of all parts stand one after the other."""


def nothing_more(_: Handoffs, __: Split) -> pd.DataFrame:
    """The split is enough."""
    return pd.DataFrame()


@dataclass(frozen=True)
class Result:
    """`split`: its requests have one column more, `part`: in which part each was. `account`: of
    all spans. `clocks`: None where all is on one clock. `beside`: what else was asked of each part.
    """

    split: Split
    account: Account
    clocks: Clocks | None
    beside: list[pd.DataFrame]


def split_parts(
    division: Division,
    drift_ppm: float,
    executor: Executor | None = None,
    partial_source: bool = False,
    refused: Refused = (),
    also: Also = nothing_more,
) -> Result:
    """The split of all parts, in this process or on `executor`.

    `partial_source`: see `join`. `refused`: see `Account.of`. `also`: see `Also`. Raises
    `ParquetError` and `OSError`, and whatever the executor raises where it is lost.
    """
    run = map if executor is None else executor.map
    clocks = clocks_of_parts(division, drift_ppm, executor)
    one_part = partial(
        split_part, clocks=clocks, partial_source=partial_source, refused=refused, also=also
    )
    done = list(run(one_part, division.parts))
    splits = [
        replace(one, requests=one.requests.assign(part=np.int64(number)))
        for number, (one, *_) in enumerate(done)
    ]
    account = reduce(add, [account for _, account, _ in done])
    return Result(together(splits), account, clocks, [more for *_, more in done])


def clocks_of_parts(
    division: Division, drift_ppm: float, executor: Executor | None = None
) -> Clocks | None:
    """The offsets between the clocks of all parts; None where all is on one clock."""
    if len(division.clocks) < 2:
        return None
    run = map if executor is None else executor.map
    return clocks_of(list(run(witness, division.parts)), drift_ppm)


def witness(part: Part) -> Testimony:
    """What one part says of the clocks."""
    return testimony(read(part)[0])


def split_part(
    part: Part,
    clocks: Clocks | None,
    partial_source: bool = False,
    refused: Refused = (),
    also: Also = nothing_more,
) -> tuple[Split, Account, pd.DataFrame]:
    """The split of one part, the account of its spans and of those refused in its traces, and what
    `also` takes from it."""
    table, copies = read(part)
    traces = set(table.spans["trace_id"].cat.categories) if refused else ()
    mine = [ids for ids in refused if ids[0] in traces]
    handoffs = handoffs_of(table, clocks, partial_source)
    done = split(handoffs)
    return done, Account.of(table, copies, mine), also(handoffs, done)


def read(part: Part) -> tuple[SpansTable, Copies]:
    """The spans table of one part, each clock on one anchor."""
    builder = TableBuilder()
    for path, rows in groupby(part.rows, key=lambda one: one.path):
        for batch in read_rows(path, {one.group: one.rows for one in rows}):
            builder.add_batch(batch)
    table, copies = builder.finish()
    return on_one_anchor(table, part.anchors), copies
