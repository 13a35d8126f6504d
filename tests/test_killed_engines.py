"""Engines that are killed while somebody counts on them: what the living one says of it."""

from collections.abc import Iterator

import pytest
from engines import eventually
from faults import (
    LARGE,
    LONG,
    P_UNREAD,
    SECONDS,
    SERVER_ERROR,
    Pair,
    kill,
    settings,
    stopped,
    waited,
)

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def pushing(
    tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer
) -> Iterator[Cluster]:
    """A pair for each test, in push."""
    directory = tmp_path_factory.mktemp("killed-push")
    made = settings("push", directory, prefills=2, decodes=2, **LARGE)
    with Cluster(made, engine_server) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pulling(
    tmp_path_factory: pytest.TempPathFactory, engine_server: EngineServer
) -> Iterator[Cluster]:
    """A P for each test, in pull."""
    directory = tmp_path_factory.mktemp("killed-pull")
    made = settings("pull", directory, prefills=3, decodes=2, **LARGE)
    with Cluster(made, engine_server) as cluster:
        yield cluster


def warm(cluster: Cluster, prefill: int, decode: int) -> Pair:
    """Two engines that know each other."""
    pair = Pair(cluster, prefill, decode)
    assert pair.hand_off(f"warm-{prefill}-{decode}").status == 200
    return pair


@pytest.mark.covers("decode-killed", "push", on="engines")
def test_decode_is_killed_during_a_write(pushing: Cluster) -> None:
    """P's WRITE finds its peer gone, and the lease runs out."""
    pair = warm(pushing, 0, 0)
    client = pair.connect(pair.d, "cut", pair.told("cut"), LONG)
    for sent in (sc.SPAN_DECODE_ADMISSION, sc.SPAN_REGISTRATION):
        pair.span("cut", sent)  # each by a recorder of its own, which is to die soon
    with stopped(pair.d):
        pair.prefill("cut", LONG)
        pair.span("cut", sc.SPAN_WRITE_SUBMIT)
        kill(pair.d)
    client.leave()
    written = {
        sc.SPAN_MATCH: "",
        sc.SPAN_WRITE_SUBMIT: "",
        sc.SPAN_WRITE_COMPLETE: sc.ERROR_PEER_LOST,
    }
    before = {sc.SPAN_DECODE_ADMISSION: "", sc.SPAN_REGISTRATION: ""}
    pair.expect("cut", P_UNREAD | written | before)


@pytest.mark.covers("prefill-killed", "push", on="engines")
def test_prefill_is_killed_after_the_registration(pushing: Cluster) -> None:
    """D's client waits in vain; D's span ends when two messages to P could not be delivered."""
    pair = warm(pushing, 1, 1)
    client = pair.connect(pair.d, "orphan", pair.told("orphan"))
    pair.span("orphan", sc.SPAN_REGISTRATION)
    kill(pair.p)
    pair.expect("orphan", waited(sc.ERROR_PEER_LOST) | {sc.SPAN_REGISTRATION: ""})
    client.leave()


@pytest.mark.covers("decode-killed", "pull", on="engines")
def test_decode_is_killed_after_prefill(pulling: Cluster) -> None:
    """P holds the blocks until their lease runs out."""
    pair = warm(pulling, 0, 0)
    pair.prefill("unread")
    kill(pair.d)
    pair.expect("unread", P_UNREAD)


@pytest.mark.covers("prefill-killed", "pull", on="engines")
def test_prefill_is_killed_before_the_read(pulling: Cluster) -> None:
    """D finds it gone and fails the request."""
    pair = warm(pulling, 1, 1)
    params = pair.prefill("gone")
    pair.span("gone", sc.SPAN_PREFILL_END)
    kill(pair.p)
    assert pair.decode("gone", params) == SERVER_ERROR
    lost = sc.ERROR_PEER_LOST
    expected = {sc.SPAN_PREFILL_QUEUE: "", sc.SPAN_PREFILL: "", sc.SPAN_PREFILL_END: ""}
    expected |= waited(lost)
    # NIXL may notice when the READ is posted, or just after.
    at_once = expected | {sc.SPAN_READ_SUBMIT: lost}
    after = expected | {sc.SPAN_READ_SUBMIT: "", sc.SPAN_READ_COMPLETE: lost}
    assert eventually(lambda: pair.errors("gone") in (at_once, after), SECONDS)


@pytest.mark.covers("prefill-killed", "pull", on="engines")
def test_prefill_is_killed_during_the_read(pulling: Cluster) -> None:
    """The READ that was posted finds its peer gone."""
    pair = warm(pulling, 2, 1)
    params = pair.prefill("cut", LONG)
    pair.span("cut", sc.SPAN_PREFILL_END)
    with stopped(pair.p):
        answer = pair.decode_later("cut", params, LONG)
        pair.span("cut", sc.SPAN_READ_SUBMIT)
        kill(pair.p)
    assert answer.result() == SERVER_ERROR
    lost = sc.ERROR_PEER_LOST
    computed = {sc.SPAN_PREFILL_QUEUE: "", sc.SPAN_PREFILL: "", sc.SPAN_PREFILL_END: ""}
    read = {sc.SPAN_READ_SUBMIT: "", sc.SPAN_READ_COMPLETE: lost}
    pair.expect("cut", computed | waited(lost) | read)
