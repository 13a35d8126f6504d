"""Sources as every command reads them: what fits in memory as one table, what does not as files."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pdtrace.analysis.counted import plural
from pdtrace.analysis.files import RemoteError, Source, is_store_address
from pdtrace.analysis.parquet import ParquetError, is_spans_table, row_groups
from pdtrace.analysis.partitions import ROWS, Division, divide
from pdtrace.analysis.sources import Limits, SourceError, expand
from pdtrace.analysis.spill import Spill
from pdtrace.analysis.store import Reading
from pdtrace.analysis.tabulate import Tabulated, collect, finished

Workers = Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class Large:
    """Files of spans tables in Parquet, to be split in parts.

    `reading`: how they came about, if not by an export; `rejected`: what they lack. `spill`: holds
    the files, if they are ours, for as long as it is there.
    """

    paths: list[Source]
    reading: Reading
    rejected: Counter[str]
    spill: Spill | None = None

    @property
    def partial(self) -> bool:
        """The source said that its answer was cut."""
        return self.reading.tally.partial > 0

    @contextmanager
    def divided(self, workers: Workers | None) -> Iterator[tuple[Division, Executor | None]]:
        """Parts of whole requests, and what to work on them with: `workers`, or this process if
        there is but one part. Raises `SourceError`, also for what goes wrong while it is used."""
        try:
            groups = row_groups(self.paths)
            several = sum(group.size for group in groups) > ROWS
            with workers() if workers is not None and several else nullcontext() as executor:
                division = divide(groups, ROWS, executor)
                if not division.parts:
                    raise SourceError(nothing_named(division.spans))
                yield division, executor
        except (OSError, ParquetError, RemoteError) as error:
            raise SourceError(f"cannot read the spans table: {error}") from error
        except BrokenExecutor as error:
            raise SourceError(
                "a process that split a part was lost, perhaps for want of memory: fewer "
                "--processes need less"
            ) from error


def opened(sources: Sequence[str | Path], limits: Limits) -> Large | Tabulated:
    """A spans table in Parquet is not read yet. Any other source is; what is large of it is kept
    in a temporary directory. Raises `SourceError` as `tabulate` does.
    """
    paths = [place.path for place in expand(sources)]
    if all(not is_store_address(path) and is_spans_table(path) for path in paths):
        return Large(paths, Reading(), Counter())
    spill = Spill()
    builder, reading = collect(sources, limits, spill)
    if not spill.paths:
        return finished(builder, reading, sources)
    builder.spill_rest()
    return Large([*spill.paths], reading, builder.columns.rejected, spill)


def nothing_named(spans: int) -> str:
    """Why there is nothing to split."""
    return (
        f"{plural(spans, 'span')} and none that names a request: nothing says which request waited "
        "for what"
    )
