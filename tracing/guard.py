"""Error isolation for code that runs inside somebody's engine.

An `Exception` in a hook is counted and logged once per hook with its traceback; the engine never
sees it. A hook that failed too often switches itself off: from then on the engine's method is
called and nothing else. `BaseException` (exit, interrupt) passes: it is not ours.
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec

from pdtrace.tracing.settings import Settings

_log = logging.getLogger("pdtrace")
P = ParamSpec("P")
_LOST: Final = "spans that need this hook"


class Guard:
    """Counts the errors of each hook, up to `error_limit` of them.

    `strict` re-raises, for tests of the hooks themselves.
    """

    def __init__(
        self, strict: bool = False, error_limit: int = Settings().hook_error_limit
    ) -> None:
        self.errors: Counter[str] = Counter()
        self._strict = strict
        self._limit = error_limit

    def failed(self, hook: str, lost: str = _LOST) -> bool:
        """Call in an `except` block: count, and log the first error of each hook.

        `lost` names what is missing without it. True when the hook has to switch itself off.
        """
        self.errors[hook] += 1
        if self.errors[hook] == 1:
            _log.exception(
                "pdtrace: hook %s failed; the request is served as without tracing, but %s are "
                "missing or wrong. Further errors of it are only counted",
                hook,
                lost,
            )
        if self._strict:
            raise
        if self.errors[hook] == self._limit:
            _log.error(
                "pdtrace: hook %s failed %d times and is off until the process starts again: "
                "%s are no longer recorded",
                hook,
                self._limit,
                lost,
            )
        return self.errors[hook] >= self._limit

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
        raised: Callable[..., None] | None = None,
        lost: str = _LOST,
    ) -> bool:
        """Wrap `target.method` on this one object.

        `before(*args, **kwargs)` runs ahead of the call, `after(result, *args, **kwargs)` behind
        a call that returned, `raised(error, *args, **kwargs)` behind one that raised. Arguments,
        result and exceptions pass unchanged. `lost` names what there is no more of when the hook
        is off. False, and nothing is done, when the object has no such method: that instant is
        then not observed.
        """
        original = getattr(target, method, None)
        if original is None:
            return False

        def failed() -> None:
            nonlocal before, after, raised
            if self.failed(method, lost):
                before = after = raised = None

        def observed(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                try:
                    before(*args, **kwargs)
                except Exception:
                    failed()
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                if raised is not None:
                    try:
                        raised(error, *args, **kwargs)
                    except Exception:
                        failed()
                raise
            if after is not None:
                try:
                    after(result, *args, **kwargs)
                except Exception:
                    failed()
            return result

        setattr(target, method, observed)
        return True
