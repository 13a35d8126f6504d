"""Error isolation for code that runs inside somebody's engine.

An `Exception` in a hook is counted and logged once per hook with its traceback; the engine never
sees it. `BaseException` (exit, interrupt) passes: it is not ours.
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

_log = logging.getLogger("pdtrace")
P = ParamSpec("P")


class Guard:
    """Counts the errors of each hook; `strict` re-raises, for tests of the hooks themselves."""

    def __init__(self, strict: bool = False) -> None:
        self.errors: Counter[str] = Counter()
        self._strict = strict

    def failed(self, hook: str) -> None:
        """Call in an `except` block: count, and log the first error of each hook."""
        self.errors[hook] += 1
        if self.errors[hook] == 1:
            _log.exception(
                "pdtrace: hook %s failed; the request is served as without tracing, but spans "
                "that need this hook are missing or wrong. Further errors of it are only counted",
                hook,
            )
        if self._strict:
            raise

    def isolate(self, hook: str, function: Callable[P, None]) -> Callable[P, None]:
        """`function`, never raising an `Exception`."""

        @wraps(function)
        def isolated(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Exception:
                self.failed(hook)

        return isolated

    def observe(
        self,
        target: Any,
        method: str,
        *,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> bool:
        """Wrap `target.method` on this one object.

        `before(*args, **kwargs)` runs ahead of the call, `after(result, *args, **kwargs)` behind
        a call that returned. Arguments, result and exceptions pass unchanged. False, and nothing
        is done, when the object has no such method: that instant is then not observed.
        """
        original = getattr(target, method, None)
        if original is None:
            return False
        failed = self.failed

        def observed(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                try:
                    before(*args, **kwargs)
                except Exception:
                    failed(method)
            result = original(*args, **kwargs)
            if after is not None:
                try:
                    after(result, *args, **kwargs)
                except Exception:
                    failed(method)
            return result

        setattr(target, method, observed)
        return True
