"""What no longer fits: spans of large sources, written down as they come, to be split in parts."""

import shutil
import tempfile
import weakref
from pathlib import Path

from pdtrace.analysis.columns import Batch
from pdtrace.analysis.parquet import write_spans
from pdtrace.analysis.sources import SourceError


class Spill:
    """Spans tables in a temporary directory, which is there as long as this object is.

    `paths`: the files so far. In each the spans are as they came: neither in order nor each once.
    """

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self._directory: Path | None = None

    def __call__(self, batch: Batch) -> None:
        """Write down some spans; raises `SourceError` when there is no room for them."""
        try:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="pdtrace-spans-"))
                weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
            path = self._directory / f"{len(self.paths):06}.parquet"
            write_spans(batch, path)
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise SourceError(
                f"cannot keep the spans of a large source in {where}, which TMPDIR names: "
                f"{error.strerror or error}"
            ) from error
        self.paths.append(path)
