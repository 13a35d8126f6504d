"""Which engines the router asks, and what it does when one is down or has been restarted."""

import asyncio

import httpx
import pytest
from fake_engine import DONE, WAIT_S, FakeEngine, token
from router_rig import PROMPT, STREAM, Rig, error_message, expected_leg, expected_request, failed


def test_least_outstanding_avoids_the_busy_engine(rig: Rig) -> None:
    """While D1 holds a stream open, all other requests go to D2."""
    rig.decode = [FakeEngine("D1"), FakeEngine("D2")]
    gate = asyncio.Event()
    rig.decode[0].script = [token("a"), gate, DONE]
    rig.start(policy="least_outstanding")

    with rig.stream() as chunks:
        next(chunks)
        for _ in range(3):
            rig.post(STREAM)
        rig.set(gate)
        list(chunks)

    assert [len(engine.requests) for engine in rig.decode] == [1, 3]


def test_round_robin_alternates(rig: Rig) -> None:
    """Each role takes turns of its own."""
    rig.prefill = [FakeEngine("P1"), FakeEngine("P2")]
    rig.decode = [FakeEngine("D1"), FakeEngine("D2"), FakeEngine("D3")]
    rig.start()

    for _ in range(6):
        rig.post(PROMPT)

    assert [len(engine.requests) for engine in rig.prefill] == [3, 3]
    assert [len(engine.requests) for engine in rig.decode] == [2, 2, 2]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_another_engine_is_tried_when_one_is_down(rig: Rig, role: str) -> None:
    """The client sees nothing of it; the spans show both attempts."""
    engines = [FakeEngine("gone"), FakeEngine("here")]
    setattr(rig, role, engines)
    rig.start(down=(engines[0],))

    assert rig.post(PROMPT).status_code == 200

    legs = [span for span in rig.tree() if span["attributes"].get("pd.leg") == role]
    states = [(leg["status"], leg["attributes"]["pd.attempt"]) for leg in legs]
    assert states == [("ERROR", 1), ("UNSET", 2)]


def test_decode_leg_is_sent_again_when_p_was_restarted(rig: Rig) -> None:
    """P's answer shows a new engine id while D still waits for the old one."""
    rig.start()
    rig.learn()
    (p,), (d,) = rig.prefill, rig.decode
    p.engine_id = "P-2"
    never = asyncio.Event()

    async def first_attempt_hangs() -> None:
        if len(d.requests) == 1:
            await never.wait()

    p.before, d.before = d.asked, first_attempt_hangs

    assert rig.post(x_request_id="r1").status_code == 200

    ids = [body["kv_transfer_params"]["remote_engine_id"] for body in d.bodies]
    assert ids == ["P-1", "P-2"]
    assert d.cancelled.wait(WAIT_S)
    assert rig.tree() == [
        expected_request(),
        failed(expected_leg("decode", d), "aborted"),
        expected_leg("decode", d, **{"pd.attempt": 2, "gen_ai.usage.input_tokens": 7}),
        expected_leg("prefill", p),
    ]


def test_prefill_engine_down(rig: Rig) -> None:
    """503 and the engines that were tried, in the answer and on the spans."""
    rig.start(down=(rig.prefill[0],))

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 503
    url = rig.prefill[0].url
    sentence = f"prefill leg: no prefill engine is reachable (tried {url})"
    assert answer.json() == {"error": {"message": sentence, "type": "server_error", "code": 503}}
    root = expected_request(
        **{"pd.dispatch": "sequential", "http.response.status_code": 503},
    )
    del root["attributes"]["gen_ai.usage.input_tokens"]
    assert rig.tree() == [
        failed(root, "peer_lost"),
        failed(expected_leg("prefill", rig.prefill[0]), "peer_lost"),
    ]


def test_prefill_engine_down_after_it_was_known(rig: Rig) -> None:
    """D's leg, already sent, is cancelled."""
    rig.start()
    rig.learn()
    rig.decode[0].before = asyncio.Event().wait
    rig.stop_first()

    answer = rig.post(x_request_id="r1")

    assert answer.status_code == 503
    root, *legs = rig.tree()
    assert root["attributes"]["error.type"] == "peer_lost"
    assert [leg["attributes"]["error.type"] for leg in legs] == ["aborted", "peer_lost"]


def test_decode_engine_down(rig: Rig) -> None:
    """P has served by then; the answer says which leg failed."""
    rig.start("pull", down=(rig.decode[0],))

    answer = rig.post()

    assert answer.status_code == 503
    assert error_message(answer).startswith("decode leg: no decode engine is reachable")


def test_models_come_from_a_decode_engine(rig: Rig) -> None:
    """From the first one that answers."""
    rig.decode = [FakeEngine("gone"), FakeEngine("here")]
    rig.start(down=(rig.decode[0],))

    answer = httpx.get(f"{rig.url}/v1/models", trust_env=False)

    assert answer.json() == {"data": [{"id": "m"}]}


def test_health_names_the_role_without_an_engine(rig: Rig) -> None:
    """One healthy engine for each role is needed."""
    rig.start(down=(rig.prefill[0],))

    answer = httpx.get(f"{rig.url}/health", trust_env=False)

    assert answer.status_code == 503
    assert error_message(answer) == "no healthy engine: prefill"
