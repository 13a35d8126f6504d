"""Requests through the router that end badly: by an engine, by time, or by their client."""

import asyncio
import json
import socket

import pytest
from fake_engine import DONE, WAIT_S, ScriptItem, event, token
from router_rig import CHAT, STREAM, Rig, error_message, expected_leg, expected_request, failed

from pdtrace.connector.router_settings import Timeouts


def test_prefill_error_cancels_the_decode_leg(rig: Rig) -> None:
    """D would wait for KV that does not come; its connection is closed."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    p.before, d.before = d.asked, asyncio.Event().wait
    p.error = (500, b'{"error": {"message": "out of luck", "code": 500}}')

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 502
    assert error_message(answer) == f"prefill leg: engine {p.url} answered 500: out of luck"
    assert d.cancelled.wait(WAIT_S)
    root = expected_request(**{"http.response.status_code": 502})
    del root["attributes"]["gen_ai.usage.input_tokens"]
    assert rig.tree() == [
        failed(root, "500"),
        failed(expected_leg("decode", d), "aborted"),
        failed(expected_leg("prefill", p), "500", events=True),
    ]


def test_decode_error_cancels_the_prefill_leg(rig: Rig) -> None:
    """Nobody would fetch P's blocks."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    p.before, d.before = asyncio.Event().wait, p.asked
    d.error = (500, b"no json")

    answer = rig.post()

    assert answer.status_code == 502
    assert error_message(answer) == f"decode leg: engine {d.url} answered 500"
    assert p.cancelled.wait(WAIT_S)


def test_decode_engine_breaks_the_stream(rig: Rig) -> None:
    """The stream that began ends with an error event."""
    rig.start()
    rig.learn()
    gate = asyncio.Event()
    rig.decode[0].script = [token("a"), gate, RuntimeError("scripted")]

    with rig.stream() as chunks:
        assert next(chunks) == token("a")
        rig.wait_for_leg("prefill")
        rig.set(gate)
        ended = b"".join(chunks)

    sentence = json.loads(ended.removeprefix(b"data: "))["error"]["message"]
    assert sentence == f"decode leg: engine {rig.decode[0].url} broke the connection"
    root, decode, prefill = rig.tree()
    assert (root["status"], root["attributes"]["error.type"]) == ("ERROR", "peer_lost")
    assert (decode["status"], prefill["status"]) == ("ERROR", "UNSET")


def test_prefill_error_after_an_empty_opening_chunk(rig: Rig) -> None:
    """Until the first token P's failure ends the stream, with an error event."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    opened = asyncio.Event()
    p.before, p.error = opened.wait, (500, b"")
    role = event({"choices": [{"delta": {"role": "assistant"}}]})
    d.script = [role, asyncio.Event()]

    with rig.stream(CHAT, "/v1/chat/completions") as chunks:
        assert next(chunks) == role
        rig.set(opened)
        assert b"".join(chunks).startswith(b'data: {"error"')

    assert d.cancelled.wait(WAIT_S)


@pytest.mark.parametrize("before", [[], [token("a")]])
def test_error_event_of_an_engine_is_an_error(rig: Rig, before: list[ScriptItem]) -> None:
    """vLLM reports a failed load inside a stream that began with 200."""
    rig.start()
    rig.learn()
    failure = event({"error": {"message": "KV load failed", "code": 500}})
    gate = asyncio.Event()
    rig.loop.call_later(0.05, gate.set)
    rig.decode[0].script = [*before, gate, failure, DONE]

    answer = rig.post()

    assert answer.content.endswith(failure + DONE)
    root = rig.tree()[0]
    assert (root["status"], root["attributes"]["error.type"]) == ("ERROR", "500")


def test_bad_request_is_passed_on_unchanged(rig: Rig) -> None:
    """What an engine says against the request is the client's business."""
    rig.start()
    refusal = b'{"error":{"message":"no such model","code":404}}'
    rig.prefill[0].error = (404, refusal)

    answer = rig.post()

    assert (answer.status_code, answer.content) == (404, refusal)
    assert rig.tree()[0]["attributes"]["error.type"] == "404"


@pytest.mark.parametrize("body", [b"{", b"[1]", b""])
def test_malformed_json(rig: Rig, body: bytes) -> None:
    """It is refused before any engine is asked."""
    rig.start()

    answer = rig.post(body)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert rig.prefill[0].requests == []


def test_prefill_without_transfer_parameters(rig: Rig) -> None:
    """An engine that was started without a connector."""
    rig.start()
    p = rig.prefill[0]
    p.params = dict  # type: ignore[method-assign]

    answer = rig.post()

    assert answer.status_code == 502
    sentence = f"prefill leg: engine {p.url} returned no usable kv_transfer_params"
    assert error_message(answer) == sentence


def test_silent_decode_engine_times_out(rig: Rig) -> None:
    """The leg is given up, and D sees its client go."""
    rig.start(timeouts=Timeouts(silence_s=0.2))
    d = rig.decode[0]
    d.before = asyncio.Event().wait

    answer = rig.post()

    assert answer.status_code == 504
    assert error_message(answer) == f"decode leg: engine {d.url} sent nothing in time"
    assert d.cancelled.wait(WAIT_S)
    assert rig.tree()[0]["attributes"]["error.type"] == "timeout"


def test_malformed_chunk_ends_the_stream(rig: Rig) -> None:
    """The HTTP client does not wake its reader then: the limit on silence does."""
    d = rig.decode[0]
    rig.start("pull", down=(d,), timeouts=Timeouts(silence_s=0.2))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n" % (len(token("a")), token("a")))
        await asyncio.sleep(0.05)
        writer.write(b"no length\r\n")
        await reader.read()
        writer.close()

    serving = asyncio.start_server(answer, "127.0.0.1", d.port)
    server = asyncio.run_coroutine_threadsafe(serving, rig.loop).result(WAIT_S)

    content = rig.post().content

    rig.loop.call_soon_threadsafe(server.close)
    assert content.startswith(token("a") + b'data: {"error"')
    assert f"engine {d.url} sent nothing in time".encode() in content


def test_request_has_a_deadline_of_its_own(rig: Rig) -> None:
    """Over both legs, whatever each may take."""
    rig.start(timeouts=Timeouts(request_s=0.2))
    rig.prefill[0].before = asyncio.Event().wait

    answer = rig.post()

    assert answer.status_code == 504
    assert rig.prefill[0].cancelled.wait(WAIT_S)
    assert rig.tree()[0]["attributes"]["error.type"] == "timeout"


@pytest.mark.parametrize("begun", [True, False])
def test_client_hangs_up(rig: Rig, begun: bool) -> None:
    """The decode leg's connection is closed and the span is ended as aborted."""
    rig.start()
    rig.learn()
    d = rig.decode[0]
    d.script = [*([token("a")] if begun else []), asyncio.Event()]

    with socket.create_connection(("127.0.0.1", int(rig.url.rsplit(":", 1)[1]))) as client:
        body = json.dumps(STREAM)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall((head + body).encode())
        if begun:
            client.recv(1)
        else:
            asyncio.run_coroutine_threadsafe(d.asked(), rig.loop).result(WAIT_S)

    assert d.cancelled.wait(WAIT_S)
    root, decode, *_ = rig.tree()
    assert (root["status"], root["attributes"]["error.type"]) == ("ERROR", "aborted")
    assert (decode["status"], decode["attributes"]["error.type"]) == ("ERROR", "aborted")
