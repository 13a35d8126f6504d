"""A running Tempo or Jaeger as a source, against a small server with their documented answers."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from test_jaeger import jaeger_of

from pdtrace.analysis.live import Live, LiveError, shown
from pdtrace.analysis.query import Query, QueryError, instant_ns, length_ns
from pdtrace.analysis.sources import SourceError
from pdtrace.analysis.store import read_spans
from pdtrace.analysis.tabulate import tabulate
from pdtrace.cli.main import main

DATA = Path(__file__).parent / "data"
V1 = json.loads((DATA / "c07_tempo_v1.json").read_text())
PARTIAL = json.loads((DATA / "c07_tempo_v2_partial.json").read_text())
SEARCH = json.loads((DATA / "c07_tempo_search.json").read_text())
TRACE = "071d1f1da4fde64a13380a71e082cc6c"
ASKED = Query(since_ns=10**18, until_ns=2 * 10**18)

Answer = tuple[int, Any]


class Server(ThreadingHTTPServer):
    """Answers by path; `asked` are the requests that came: path, query, headers."""

    def __init__(self, answers: Callable[[str, int], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.asked: list[tuple[str, dict[str, list[str]], dict[str, str]]] = []
        self.mutex = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        with self.server.mutex:
            before = self.server.paths().count(parts.path)
            self.server.asked.append((parts.path, parse_qs(parts.query), dict(self.headers)))
        status, body = self.server.answers(parts.path, before)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str, int], Answer]], Server]]:
    """Starts servers and stops them."""
    running: list[Server] = []

    def start(answers: Callable[[str, int], Answer]) -> Server:
        server = Server(answers)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


Serve = Callable[[Callable[[str, int], Answer]], Server]


def tempo(traces: dict[str, Any], search: dict[str, Any]) -> Callable[[str, int], Answer]:
    def answer(path: str, before: int) -> Answer:
        if path == "/api/search":
            return 200, search
        return (200, traces[path]) if path in traces else (404, b"not found")

    return answer


def jaeger(traces: dict[str, Any]) -> Callable[[str, int], Answer]:
    """Its UI answers unknown paths with a page."""

    def answer(path: str, before: int) -> Answer:
        if path == "/api/services":
            return 200, {"data": ["pd-router", "vllm-prefill"], "total": 2}
        return (200, traces) if path == "/api/traces" else (200, b"<!doctype html>")

    return answer


def run(live: Live) -> list[Any]:
    return [document.value for document in live.messages()]


def live(server: Server, query: Query = ASKED) -> Live:
    return Live(server.url, query, pause=lambda seconds: None)


def test_tempo_is_searched_and_each_trace_fetched_once(serve: Serve) -> None:
    """Zeros that the search dropped are restored; what was asked is asked."""
    search = {"traces": SEARCH["traces"] * 2, "metrics": {"completedJobs": 1, "totalJobs": 1}}
    server = serve(tempo({f"/api/v2/traces/{TRACE}": V1}, search))
    asked = Query(10**18 + 1, 2 * 10**18 + 1, service='a"b', min_duration_ns=250_000_000)
    store = live(server, asked)
    assert run(store) == [V1]
    assert (store.notes, store.cut) == ([f"{server.url}: fetched 1 of 1 trace found"], False)
    assert server.asked[0][1] == {
        "start": ["1000000000"], "end": ["2000000001"], "limit": ["1000"],
        "tags": ['service.name="a\\"b"'], "minDuration": ["250000000ns"],
    }  # fmt: skip


def test_jaeger_is_asked_for_each_service(serve: Serve) -> None:
    """Its search answers with whole traces."""
    traces = jaeger_of(read_spans([DATA / "c07_tempo_v1.json"]).records)
    server = serve(jaeger(traces))
    store = live(server, Query(10**18, 2 * 10**18, min_duration_ns=1))
    assert run(store) == [traces, traces]
    assert store.notes == [f"{server.url}: fetched 2 of 2 traces found"]
    services = [query["service"] for path, query, _ in server.asked if path == "/api/traces"]
    assert sorted(services) == [["pd-router"], ["vllm-prefill"]]
    assert server.asked[-1][1]["start"] == [str(10**15)]
    assert server.asked[-1][1]["minDuration"] == ["1us"]


def test_one_trace_by_its_address(serve: Serve) -> None:
    """Nothing is searched."""
    server = serve(tempo({f"/api/traces/{TRACE}": V1}, {}))
    assert run(Live(f"{server.url}/api/traces/{TRACE}", ASKED)) == [V1]
    assert server.paths() == [f"/api/traces/{TRACE}"]


def test_what_fails_for_a_moment_is_tried_again(serve: Serve) -> None:
    """And no oftener than a few times, with growing pauses."""
    working = tempo({f"/api/v2/traces/{TRACE}": V1}, SEARCH)
    server = serve(lambda path, n: (503, b"") if n < 3 else working(path, n))
    pauses: list[float] = []
    store = Live(server.url, ASKED, pause=pauses.append)
    assert run(store) == [V1]
    assert pauses == [0.25, 0.5, 1.0] * 2


def test_traces_that_cannot_be_fetched_are_counted(serve: Serve) -> None:
    """The others come, and the whole is marked as cut."""
    ids = [f"{number:032x}" for number in range(1, 40)]
    answers = {f"/api/v2/traces/{one}": V1 for one in ids[1:]}
    server = serve(tempo(answers, {"traces": [{"traceID": one.lstrip("0")} for one in ids]}))
    store = live(server)
    assert len(run(store)) == 38
    assert store.cut
    assert store.notes == [
        f"{server.url}: fetched 38 of 39 traces found",
        f"one of them was not fetched: answers HTTP 404 at /api/v2/traces/{ids[0]}",
    ]


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"traces": SEARCH["traces"]}, "its limit of 1 (--limit)"),
        ({"traces": SEARCH["traces"], "metrics": {"completedJobs": 3, "totalJobs": 9}}, "3 of 9"),
    ],
)
def test_a_search_that_is_not_complete_says_so(
    serve: Serve, search: dict[str, Any], words: str
) -> None:
    """A limit, and blocks that Tempo did not read."""
    server = serve(tempo({f"/api/v2/traces/{TRACE}": V1}, search))
    store = live(server, Query(0, 10**18, limit=1 if "limit" in words else 10))
    run(store)
    assert store.cut
    assert any(words in note for note in store.notes)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (lambda path, n: (401, b""), "refuses (HTTP 401): name a token"),
        (lambda path, n: (500, b""), "answers HTTP 500 at /api/search"),
        (lambda path, n: (404, b""), "answers neither as Tempo nor as Jaeger"),
        (lambda path, n: (200, b"<html>"), "answers neither as Tempo nor as Jaeger"),
        (lambda path, n: (200, {"traces": []}), "found no trace (from 2001-09-09"),
    ],
)
def test_a_store_that_gives_nothing_is_named(
    serve: Serve, answers: Callable[[str, int], Answer], words: str
) -> None:
    """One sentence, without hanging."""
    with pytest.raises(LiveError) as caught:
        run(live(serve(answers)))
    assert words in str(caught.value)


def test_an_address_where_nobody_listens(serve: Serve) -> None:
    """It cannot be reached; the address is shown without what is secret in it."""
    server = serve(tempo({}, {}))
    server.shutdown()
    server.server_close()
    port = server.server_address[1]
    with pytest.raises(LiveError, match="cannot be reached"):
        run(live(server))
    with pytest.raises(SourceError) as caught:
        tabulate([f"http://user:secret@127.0.0.1:{port}/x?token=secret"])
    assert f"http://127.0.0.1:{port}/x cannot be reached" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert shown("https://u:p@h:3200/a?b=c") == "https://h:3200/a"


def test_a_token_is_sent_and_never_said(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file, else from the environment; a tenant beside it."""
    server = serve(tempo({f"/api/v2/traces/{TRACE}": V1}, SEARCH))
    monkeypatch.setenv("PDTRACE_TRACES_TOKEN", "from-environment")
    run(live(server))
    (tmp_path / "token").write_text("from-file\n")
    store = live(server, Query(0, 10**18, token_file=tmp_path / "token", tenant="team"))
    run(store)
    tokens = [headers["Authorization"] for _, _, headers in server.asked]
    assert tokens == ["Bearer from-environment"] * 2 + ["Bearer from-file"] * 2
    assert server.asked[-1][2]["X-Scope-OrgID"] == "team"
    assert "from-" not in repr(store)
    with pytest.raises(LiveError, match="token file .* No such file"):
        run(live(server, Query(0, 10**18, token_file=tmp_path / "none")))


def test_split_reads_an_address(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """The same split as from a file; a trace that is cut gives exit status 3."""
    printed = []
    for body, source in ((V1, "c07_tempo_v1.json"), (PARTIAL, "c07_tempo_v2_partial.json")):
        server = serve(tempo({f"/api/v2/traces/{TRACE}": body}, SEARCH))
        for argument in ([server.url, "--since", "2026-11-29T09:00"], [str(DATA / source)]):
            with pytest.raises(SystemExit) as stopped:
                main(["split", *argument, "--json"])
            out, err = capfd.readouterr()
            printed.append((stopped.value.code, json.loads(out)))
        assert "fetched 1 of 1 trace found" not in err
    assert printed[0] == printed[1] and printed[2] == printed[3]
    assert [code for code, _ in printed] == [0, 0, 3, 3]


def test_times_and_durations_as_people_write_them() -> None:
    """Relative to now, as a date, as Unix seconds; anything else is one sentence."""
    now = 1_795_946_400_000_000_000
    assert instant_ns("now", now) == now
    assert instant_ns("1.5h", now) == now - 5400 * 10**9
    assert instant_ns("2026-11-29T10:00", now) == now
    assert instant_ns("2026-11-29T12:00+02:00", now) == now
    assert instant_ns("1795946400", now) == now
    assert [length_ns(text) for text in ("250ms", "2s", "1d")] == [
        250 * 10**6, 2 * 10**9, 86_400 * 10**9,
    ]  # fmt: skip
    for text in ("soon", "1 week", "-5m"):
        with pytest.raises(QueryError):
            instant_ns(text, now)
        with pytest.raises(QueryError):
            length_ns(text)
