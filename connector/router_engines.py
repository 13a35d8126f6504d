"""The engines behind the router: which one is next, which are down, how busy each is."""

from collections.abc import Callable, Collection
from typing import Any, Final
from urllib.parse import urlsplit

from pdtrace.connector.router_errors import NoEngine
from pdtrace.connector.router_settings import LEAST_OUTSTANDING

_NS_PER_S: Final = 1_000_000_000
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Engine:
    """One vLLM instance, as the router knows it."""

    def __init__(self, role: str, url: str) -> None:
        parts = urlsplit(url)
        self.role = role
        self.url = url.rstrip("/")
        self.host = parts.hostname or ""
        self.port = parts.port or _DEFAULT_PORTS[parts.scheme]
        self.outstanding = 0
        self.down_until_ns = 0
        self.identity: dict[str, Any] | None = None
        """P only: where D finds its side channel, once P has told; None = must be learnt."""


class EnginePool:
    """All engines of one role, chosen by the policy; P and D are chosen independently."""

    def __init__(
        self,
        role: str,
        urls: Collection[str],
        policy: str,
        mono_ns: Callable[[], int],
        down_s: float,
    ) -> None:
        self.role = role
        self.engines = [Engine(role, url) for url in urls]
        self._policy = policy
        self._mono_ns = mono_ns
        self._down_ns = round(down_s * _NS_PER_S)
        self._turn = 0

    def pick(self, tried: Collection[Engine] = ()) -> Engine:
        """The policy's next engine that is not in `tried`; one known to be down comes last."""
        turn = [*self.engines[self._turn :], *self.engines[: self._turn]]
        left = [engine for engine in turn if engine not in tried]
        if not left:
            urls = ", ".join(engine.url for engine in self.engines)
            raise NoEngine(f"{self.role} leg: no {self.role} engine is reachable (tried {urls})")
        now = self._mono_ns()
        candidates = [engine for engine in left if engine.down_until_ns <= now] or left
        if self._policy == LEAST_OUTSTANDING:
            # min() takes the first of equals, and the turn moves on, so equals alternate.
            chosen = min(candidates, key=lambda engine: engine.outstanding)
        else:
            chosen = candidates[0]
        self._turn = (self.engines.index(chosen) + 1) % len(self.engines)
        return chosen

    def mark_down(self, engine: Engine) -> None:
        """It refused a connection: ask it last for a while, and learn its identity anew."""
        engine.down_until_ns = self._mono_ns() + self._down_ns
        engine.identity = None
