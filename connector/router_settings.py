"""What a router is told at start; wrong settings fail here and not at the first request."""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pdtrace.tracing.semconv import (
    DISPATCH_CONCURRENT,
    DISPATCH_SEQUENTIAL,
    MODE_PULL,
    MODE_PUSH,
)

ROUND_ROBIN: Final = "round_robin"
LEAST_OUTSTANDING: Final = "least_outstanding"
POLICIES: Final = (ROUND_ROBIN, LEAST_OUTSTANDING)
MODES: Final = (MODE_PUSH, MODE_PULL)
DISPATCHES: Final = (DISPATCH_CONCURRENT, DISPATCH_SEQUENTIAL)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds in seconds; together they bound every wait of the router."""

    connect_s: float = 5.0
    silence_s: float = 120.0
    """An engine that sends nothing for this long has failed: also the wait for the KV cache."""
    request_s: float = 600.0
    """One user request from reception to its last byte."""
    down_s: float = 2.0
    """How long an engine that refused a connection is asked last."""
    drain_s: float = 5.0
    """At SIGTERM: what is still running after this is cancelled."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Engines, transfer mode, and how requests are spread over the engines."""

    mode: str
    prefill_urls: tuple[str, ...]
    decode_urls: tuple[str, ...]
    policy: str = ROUND_ROBIN
    dispatch: str = ""
    """Empty: `concurrent` for push, `sequential` for pull."""
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("policy", self.policy, POLICIES)
        if not self.dispatch:
            default = DISPATCH_CONCURRENT if self.mode == MODE_PUSH else DISPATCH_SEQUENTIAL
            object.__setattr__(self, "dispatch", default)
        _one_of("dispatch", self.dispatch, DISPATCHES)
        if self.mode == MODE_PULL and self.dispatch == DISPATCH_CONCURRENT:
            raise ValueError("dispatch 'concurrent' needs mode 'push': in pull D reads P's blocks")
        for name, urls in (("prefill", self.prefill_urls), ("decode", self.decode_urls)):
            if not urls:
                raise ValueError(f"at least one {name} URL is needed")
            for url in urls:
                _check_url(name, url)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, must be one of {', '.join(allowed)}")


def _check_url(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} URL {url!r} is not like http://host:port")
