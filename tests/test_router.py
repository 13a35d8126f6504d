"""Both legs of a request through the router, and what client and engines see of each other."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from fake_engine import DONE, TWO_TOKENS, ScriptItem, event, token
from router_rig import CHAT, PROMPT, STREAM, Rig, expected_leg, expected_request
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pdtrace.tracing.ids import derived_trace_id


def test_push_sends_the_decode_leg_before_the_prefill_leg_ends(rig: Rig) -> None:
    """P answers only after D has been asked; the span tree is whole."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    p.before = d.asked
    gate = asyncio.Event()
    d.script = [gate, *TWO_TOKENS]
    rig.loop.call_later(0.1, gate.set)

    answer = rig.post(x_request_id="r1")

    assert answer.content == token("a") + token("b") + DONE
    assert answer.headers["x-request-id"] == "r1"
    assert rig.tree() == [
        expected_request(),
        expected_leg("decode", d),
        expected_leg("prefill", p),
    ]


def test_push_learns_where_p_is_from_the_first_request(rig: Rig) -> None:
    """The first request is sequential and teaches; the second is concurrent."""
    rig.start()

    rig.post(PROMPT)
    rig.post(PROMPT)

    spans = rig.spans(2)
    dispatched = [(s.attributes or {}).get("pd.dispatch") for s in spans if s.name == "pd.request"]
    assert dispatched == ["sequential", "concurrent"]


def test_legs_carry_ids_context_and_transfer_parameters(rig: Rig) -> None:
    """One request id and trace id on both legs; each leg's span is its engine's parent."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    body = {**STREAM, "stream_options": {"include_usage": True}, "min_tokens": 2}

    rig.post(body, x_request_id="r1", authorization="Bearer x", te="trailers")

    carriers = {}
    for span in rig.spans():
        context = span.context
        name = str((span.attributes or {}).get("pd.leg"))
        carriers[name] = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
        assert context.trace_id == derived_trace_id("r1")
    [(p_headers, p_body)], [(d_headers, d_body)] = p.requests, d.requests
    for leg, headers in (("prefill", p_headers), ("decode", d_headers)):
        assert headers["x-request-id"] == "r1"
        assert headers["authorization"] == "Bearer x"
        assert headers["traceparent"] == carriers[leg]
        assert "te" not in headers
    assert p_body == {
        **PROMPT,
        "stream": False,
        "max_tokens": 1,
        "min_tokens": 1,
        "kv_transfer_params": {
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "traceparent": carriers["prefill"],
        },
    }
    assert d_body == {
        **body,
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": "P-1",
            "remote_request_id": "r1",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "pp_size": 1,
            "traceparent": carriers["decode"],
        },
    }


def test_pull_hands_over_all_that_p_returned(rig: Rig) -> None:
    """In pull D needs P's whole answer: the legs follow each other."""
    rig.start("pull")
    (p,), (d,) = rig.prefill, rig.decode

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 200
    sent = dict(d.bodies[0]["kv_transfer_params"])
    del sent["traceparent"]
    assert sent == p.params()
    mode = {"pd.transfer.mode": "pull"}
    known = {"gen_ai.usage.input_tokens": 7}
    assert rig.tree() == [
        expected_request(**mode, **{"pd.dispatch": "sequential"}),
        expected_leg("decode", d, **mode, **known),
        expected_leg("prefill", p, **mode),
    ]


def test_incoming_context_is_the_parent(rig: Rig) -> None:
    """A client that traces gets its request under its own span; `tracestate` passes."""
    rig.start()
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

    rig.post(PROMPT, traceparent=f"00-{trace_id}-{span_id}-01", tracestate="a=b")

    spans = rig.spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {trace_id}
    (root,) = (span for span in spans if span.name == "pd.request")
    assert root.parent is not None and f"{root.parent.span_id:016x}" == span_id
    assert {headers["tracestate"] for headers, _ in rig.decode[0].requests} == {"a=b"}


@pytest.mark.parametrize("given", ["", "has space", "x" * 201, 'quo"te'])
def test_unfit_request_id_is_replaced(rig: Rig, given: str) -> None:
    """Both legs and the client then see the same new one."""
    rig.start()

    answer = rig.post(PROMPT, x_request_id=given)

    made = answer.headers["x-request-id"]
    assert made != given and len(made) == 36
    assert {headers["x-request-id"] for headers, _ in rig.prefill[0].requests} == {made}


def test_headers_pass_as_they_are(rig: Rig) -> None:
    """Legs get no header of the HTTP client and no cookie; one that D repeats is kept whole."""
    rig.start()
    d = rig.decode[0]
    pairs = [("x-own", "1"), ("x-own", "2"), ("set-cookie", "a=b")]

    async def complete(request: Request) -> Response:
        d.requests.append((dict(request.headers), await request.json()))
        response = JSONResponse({})
        for name, value in pairs:
            response.headers.append(name, value)
        return response

    d.app.router.routes.insert(0, Route("/v1/completions", complete, methods=["POST"]))

    for _ in range(2):
        with rig.client() as client:
            client.headers.clear()
            answer = client.post("/v1/completions", json=PROMPT)
            assert (answer.headers["x-own"], answer.headers["set-cookie"]) == ("1, 2", "a=b")

    each_leg_sets = {"accept-encoding", "content-type", "traceparent", "x-request-id"}
    sent = each_leg_sets | {"host", "content-length"}
    assert [set(headers) for headers, _ in d.requests] == [sent, sent]


def test_non_streamed_answer(rig: Rig) -> None:
    """It is D's, and its span is that of a streamed one."""
    rig.start()
    rig.learn()

    answer = rig.post(PROMPT, x_request_id="r1")

    assert answer.json()["choices"][0]["text"] == "ab"
    assert rig.tree()[0] == expected_request()


def test_role_only_chunk_is_not_the_first_token(rig: Rig) -> None:
    """The event lies where the content came, not where the chat stream was opened."""
    rig.start()
    rig.learn()
    role_seen = asyncio.Event()
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    content = event({"choices": [{"delta": {"content": "a"}}]})
    # The content event arrives in two pieces.
    pieces: list[ScriptItem] = [content[:20], content[20:], DONE]
    rig.decode[0].script = [role, role_seen, rig.clock.move_to(500), *pieces]

    with rig.stream(CHAT, "/v1/chat/completions") as chunks:
        assert next(chunks) == role
        rig.set(role_seen)
        assert b"".join(chunks) == content + DONE

    root = rig.tree()[0]
    assert root["events"] == [("pd.first_token", 500)]
    assert (root["start"], root["end"]) == (0, 500)
    assert rig.prefill[0].bodies[0]["messages"] == CHAT["messages"]


def test_sigterm_stops_the_server_and_returns(tmp_path: Path) -> None:
    """The ready file tells the address; after SIGTERM the caller can still flush."""
    ready = tmp_path / "ready"
    code = (
        "from pathlib import Path\n"
        "from opentelemetry.trace import NoOpTracer\n"
        "from pdtrace.connector.router import serve\n"
        "from pdtrace.connector.router_settings import RouterSettings\n"
        "settings = RouterSettings('push', ('http://127.0.0.1:9',), ('http://127.0.0.1:9',))\n"
        f"serve(settings, NoOpTracer(), port=0, ready_file=Path({str(ready)!r}))\n"
        "print('flushed')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            pause = threading.Event()
            for _ in range(600):
                if ready.exists():
                    break
                pause.wait(0.05)
            url = json.loads(ready.read_text())["url"]
            answer = httpx.post(f"{url}/v1/completions", json=PROMPT, trust_env=False)
            assert answer.status_code == 503
            os.kill(process.pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, output) == (0, "flushed\n")
