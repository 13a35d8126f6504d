"""The router's parts that need no server: choice of engines, settings, bodies, chunks."""

from typing import Any

import pytest

from pdtrace.connector.router_engines import EnginePool
from pdtrace.connector.router_errors import NoEngine
from pdtrace.connector.router_params import answered_push_params, identity_of, prefill_body
from pdtrace.connector.router_settings import RouterSettings
from pdtrace.connector.sse import EventParser, carries_content, stream_error

URLS = ("http://a:1", "http://b:2", "http://c:3")


class Now:
    """A monotonic clock that stands still."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def pool(policy: str = "round_robin", now: Now | None = None) -> EnginePool:
    return EnginePool("decode", URLS, policy, now or Now(), down_s=2.0)


def picked(engines: EnginePool, count: int) -> str:
    return "".join(engines.pick().host for _ in range(count))


def test_round_robin_takes_turns() -> None:
    assert picked(pool(), 5) == "abcab"


def test_least_outstanding_takes_the_least_busy_and_alternates_among_equals() -> None:
    engines = pool("least_outstanding")
    engines.engines[1].outstanding = 2
    assert picked(engines, 4) == "acac"

    engines.engines[0].outstanding = engines.engines[2].outstanding = 3
    assert picked(engines, 2) == "bb"


def test_least_outstanding_balances_held_requests() -> None:
    engines = pool("least_outstanding")
    for _ in range(9):
        engines.pick().outstanding += 1
    assert [engine.outstanding for engine in engines.engines] == [3, 3, 3]


def test_engine_that_is_down_is_asked_last_and_later_again() -> None:
    now = Now()
    engines = pool(now=now)
    down = engines.engines[0]
    down.identity = {"remote_engine_id": "x"}
    engines.mark_down(down)
    assert picked(engines, 4) == "bcbc"
    assert down.identity is None

    assert engines.pick(engines.engines[1:]) is down

    now.ns = 2_000_000_000
    assert picked(engines, 3) == "bca"


def test_no_engine_left_names_all() -> None:
    engines = pool()
    with pytest.raises(NoEngine, match=r"no decode engine is reachable \(tried http://a:1, .*c:3"):
        engines.pick(engines.engines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "both"}, "mode is 'both', must be one of push, pull"),
        ({"policy": "random"}, "policy is 'random'"),
        ({"prefill_urls": ()}, "at least one prefill URL"),
        ({"decode_urls": ("localhost:8000",)}, "decode URL 'localhost:8000'"),
        ({"mode": "pull", "dispatch": "concurrent"}, "needs mode 'push'"),
    ],
)
def test_wrong_settings_fail_at_start(changes: dict[str, Any], message: str) -> None:
    good = {"mode": "push", "prefill_urls": URLS, "decode_urls": URLS}
    with pytest.raises(ValueError, match=message):
        RouterSettings(**{**good, **changes})


def test_default_dispatch_follows_the_mode() -> None:
    assert RouterSettings("push", URLS, URLS).dispatch == "concurrent"
    assert RouterSettings("pull", URLS, URLS).dispatch == "sequential"


def test_chat_prefill_is_limited_under_both_names() -> None:
    body = prefill_body({"messages": [], "max_completion_tokens": 9}, None)
    assert body == {
        "messages": [],
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "kv_transfer_params": {"do_remote_prefill": False, "do_remote_decode": True},
    }


def test_identity_needs_all_coordinates() -> None:
    answer = {
        "remote_engine_id": "e",
        "remote_host": "h",
        "remote_port": 1,
        "tp_size": 2,
        "remote_block_ids": [1],
        "remote_request_id": "cmpl-x-0-0123abcd",
    }
    identity = {key: answer[key] for key in list(answer)[:4]}
    assert identity_of(answer) == identity
    assert identity_of({**answer, "remote_port": None}) is None
    assert answered_push_params(answer, "x") == {
        **identity,
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_request_id": "cmpl-x-0-0123abcd",
    }


@pytest.mark.parametrize(
    ("payload", "has_content"),
    [
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [{"text": ""}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"content": "a"}}]}, True),
        ({"choices": [{"delta": {"reasoning_content": "a"}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{}]}}]}, True),
        ({"choices": [{"text": ""}, {"text": "b"}]}, True),
        ({"choices": [], "usage": {"completion_tokens": 1}}, False),
        ({"choices": {"odd": 1}}, False),
        ({"choices": [None, {"delta": "odd"}]}, False),
    ],
)
def test_carries_content(payload: dict[str, Any], has_content: bool) -> None:
    assert carries_content(payload) is has_content


def test_events_may_span_chunks() -> None:
    """Cut anywhere, the same events come out."""
    stream = b': hello\r\ndata: {"a": 1}\r\n\r\ndata: broken\n\ndata:{"b": 2}\n\ndata: [DONE]\n\n'
    for cut in range(len(stream)):
        parser = EventParser()
        events = [*parser.feed(stream[:cut]), *parser.feed(stream[cut:])]
        assert events == [{"a": 1}, {"b": 2}]


def test_stream_error_reads_the_code() -> None:
    assert stream_error(b'data: {"error": {"message": "m", "code": 503}}\n\n') == "503"
    assert stream_error(b'data: {"choices": []}\n\n') is None


def test_stream_error_after_other_events_of_the_same_chunk() -> None:
    """Events that arrive together are one chunk; text that only quotes an error is none."""
    quoted = b'data: {"choices": [{"text": "data: {\\"error\\": 1}"}]}\n\n'
    failure = b'data: {"error": {"message": "m", "code": 503}}\n\n'
    assert stream_error(quoted) is None
    assert stream_error(quoted + failure + b"data: [DONE]\n\n") == "503"
