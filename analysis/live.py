"""A running Tempo or Jaeger as a source: search, then fetch what was found, a few at a time.

Which of the two it is, its answers say. A search has a limit, and a fetch can fail: both are
counted, so that what is missing is never taken for what did not happen.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import orjson

from pdtrace.analysis.counted import plural
from pdtrace.analysis.framing import LONGEST_MESSAGE
from pdtrace.analysis.ids import TRACE_ID_BYTES, hex_id
from pdtrace.analysis.messages import Document
from pdtrace.analysis.query import Query

TOKEN_VARIABLE: Final = "PDTRACE_TRACES_TOKEN"
"""Environment variable with the bearer token, where no file is named."""
_AT_A_TIME: Final = 8
_TRIES: Final = 4
_AGAIN: Final = (429, 500, 502, 503, 504)
_FIRST_PAUSE_S: Final = 0.25
_TIMEOUT_S: Final = 30.0
_TRACE: Final = re.compile(r"/api/(?:v2/)?traces/[0-9a-fA-F]+$")


class LiveError(Exception):
    """The trace store gives nothing; what is wrong, to be said after its name."""


class _Refused(Exception):
    """An answer that is no trace; `status` is HTTP's, 0 where there was none."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


@dataclass
class Live:
    """One trace store. `messages` fetches; `notes` and `cut` are told afterwards.

    `pause` sleeps between tries; a test puts its own there.
    """

    url: str
    query: Query
    pause: Callable[[float], None] = time.sleep
    notes: list[str] = field(default_factory=list)
    cut: bool = False

    def messages(self) -> Iterator[Document]:
        """The traces found, as the store writes them; raises `LiveError` when it gives none."""
        base = urlsplit(self.url)._replace(query="", fragment="").geturl().rstrip("/")
        headers = {"Accept": "application/json", **_credentials(self.query)}
        timeout = httpx.Timeout(_TIMEOUT_S)
        with httpx.Client(headers=headers, timeout=timeout, follow_redirects=True) as client:
            try:
                yield from self._from(client, base)
            except _Refused as error:
                raise LiveError(str(error)) from error

    def _from(self, client: httpx.Client, base: str) -> Iterator[Document]:
        if _TRACE.search(base):
            yield self._get(client, base)
            return
        found = self._tempo_search(client, base)
        if found is not None:
            yield from self._fetched(client, [_tempo_trace(base, one) for one in found])
        else:
            yield from self._fetched(client, self._jaeger_searches(client, base))

    def _tempo_search(self, client: httpx.Client, base: str) -> list[str] | None:
        """Ids of traces; None when this is no Tempo."""
        try:
            answer = self._get(client, f"{base}/api/search", _tempo_query(self.query)).value
        except _Refused as error:
            if error.status in (404, 405) or error.status == 200:
                return None
            raise
        traces = answer.get("traces")
        if not isinstance(traces, list) and "metrics" not in answer:
            return None
        metrics = answer.get("metrics") or {}
        done, jobs = (int(metrics.get(key) or 0) for key in ("completedJobs", "totalJobs"))
        if done < jobs:
            self._cut(f"the search read {done} of {jobs} blocks")
        named = [hex_id(one.get("traceID"), TRACE_ID_BYTES) for one in traces or ()]
        ids = list(dict.fromkeys(one for one in named if one))
        self._at_limit(len(ids))
        return ids

    def _jaeger_searches(self, client: httpx.Client, base: str) -> list[tuple[str, dict[str, Any]]]:
        """One search for each service: Jaeger answers it with whole traces."""
        services = [self.query.service] if self.query.service else self._services(client, base)
        return [
            (f"{base}/api/traces", {"service": one, **_jaeger_query(self.query)})
            for one in services
        ]

    def _services(self, client: httpx.Client, base: str) -> list[str]:
        try:
            answer = self._get(client, f"{base}/api/services").value
        except _Refused as error:
            if error.status in (200, 404, 405):
                raise LiveError("answers neither as Tempo nor as Jaeger") from error
            raise
        services = answer.get("data")
        if not isinstance(services, list):
            raise LiveError("answers neither as Tempo nor as Jaeger")
        return [one for one in services if isinstance(one, str)]

    def _fetched(
        self, client: httpx.Client, wanted: Sequence[tuple[str, dict[str, Any]]]
    ) -> Iterator[Document]:
        """The answers in the order asked for, a few on their way at a time."""
        found = fetched = 0
        for answer in _a_few_at_a_time(lambda one: self._get(client, *one), wanted):
            try:
                document = answer.result()
            except _Refused as error:
                found += 1
                self.notes.append(f"one of them was not fetched: {error}")
                continue
            traces = document.value.get("data")
            count = len(traces) if isinstance(traces, list) else 1
            if isinstance(traces, list):
                self._at_limit(count)
            found, fetched = found + count, fetched + count
            yield document
        del self.notes[8:]
        self.notes.insert(0, f"{self.shown}: fetched {fetched} of {plural(found, 'trace')} found")
        if fetched < found:
            self.cut = True
        if not found:
            raise LiveError(f"found no trace ({self.query.in_words()})")

    def _get(self, client: httpx.Client, url: str, query: dict[str, Any] | None = None) -> Document:
        """One answer as JSON; tried again a few times when that may help."""
        for number in range(_TRIES):
            if number:
                self.pause(_FIRST_PAUSE_S * 2 ** (number - 1))
            try:
                return _answer(client, url, query or {})
            except _Refused as error:
                if error.status not in (0, *_AGAIN) or number == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _at_limit(self, count: int) -> None:
        if count >= self.query.limit:
            self._cut(f"the search stopped at its limit of {self.query.limit} (--limit)")

    def _cut(self, sentence: str) -> None:
        self.cut = True
        self.notes.append(f"{self.shown}: {sentence}")

    @property
    def shown(self) -> str:
        """The address without anything secret in it."""
        return shown(self.url)


def shown(url: str) -> str:
    """An address for people: no user, no password, no query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def _answer(client: httpx.Client, url: str, query: dict[str, Any]) -> Document:
    data = bytearray()
    try:
        with client.stream("GET", url, params=query) as response:
            for block in response.iter_bytes():
                data += block
                if len(data) > LONGEST_MESSAGE:
                    raise _Refused(413, "an answer of more than 1 GiB")
            status = response.status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        what = "does not answer in time" if isinstance(error, httpx.TimeoutException) else ""
        raise _Refused(0, what or f"cannot be reached ({type(error).__name__})") from error
    if status in (401, 403):
        raise _Refused(status, f"refuses (HTTP {status}): name a token (--token-file)")
    if status != 200:
        raise _Refused(status, f"answers HTTP {status} at {urlsplit(url).path}")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _Refused(200, f"does not answer with JSON at {urlsplit(url).path}") from error
    if not isinstance(value, dict):
        raise _Refused(200, f"answers with other JSON at {urlsplit(url).path}")
    return Document(value, len(data))


def _a_few_at_a_time(
    call: Callable[[Any], Document], wanted: Sequence[Any]
) -> Iterator[Future[Document]]:
    """Calls in order, at most a few running or waiting to be taken."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        running: deque[Future[Document]] = deque()
        for one in wanted:
            running.append(pool.submit(call, one))
            if len(running) >= 2 * _AT_A_TIME:
                yield running.popleft()
        yield from running


def _credentials(query: Query) -> dict[str, str]:
    """Headers from a file or the environment; nothing of them is ever printed."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if query.token_file is not None:
        try:
            token = query.token_file.read_text(encoding="utf-8")
        except OSError as error:
            raise LiveError(f"token file {query.token_file}: {error.strerror}") from error
    headers = {"Authorization": f"Bearer {token.strip()}"} if token.strip() else {}
    return headers | ({"X-Scope-OrgID": query.tenant} if query.tenant else {})


def _tempo_trace(base: str, trace_id: str) -> tuple[str, dict[str, Any]]:
    return f"{base}/api/v2/traces/{quote(trace_id)}", {}


def _tempo_query(query: Query) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start": query.since_ns // 10**9,
        "end": -(-query.until_ns // 10**9),
        "limit": query.limit,
    }
    if query.service:
        quoted = query.service.replace("\\", "\\\\").replace('"', '\\"')
        found["tags"] = f'service.name="{quoted}"'
    if query.min_duration_ns:
        found["minDuration"] = f"{query.min_duration_ns}ns"
    return found


def _jaeger_query(query: Query) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start": query.since_ns // 1000,
        "end": -(-query.until_ns // 1000),
        "limit": query.limit,
    }
    if query.min_duration_ns:
        found["minDuration"] = f"{-(-query.min_duration_ns // 1000)}us"
    return found
