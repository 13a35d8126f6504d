"""Run in an engine before vLLM starts: makes its hooks go on and off with a byte of a file.

While they are off each hook point is vLLM's own method behind one call of a function; nothing is
recorded, made or sent. The file is named by `PDTRACE_BENCHMARK_SWITCH`.
"""

import mmap
import os
from typing import Any

from pdtrace.tracing.guard import Guard

with open(os.environ["PDTRACE_BENCHMARK_SWITCH"], "rb") as _file:
    _switch = mmap.mmap(_file.fileno(), 1, prot=mmap.PROT_READ)
_observe = Guard.observe


def _switched(guard: Guard, target: Any, method: str, **hooks: Any) -> bool:
    original = getattr(target, method, None)
    if not _observe(guard, target, method, **hooks):
        return False
    assert original is not None
    observed = getattr(target, method)

    def either(*args: Any, **kwargs: Any) -> Any:
        return (observed if _switch[0] else original)(*args, **kwargs)

    setattr(target, method, either)
    return True


Guard.observe = _switched  # type: ignore[method-assign, assignment]
