"""Who may send to the collector: real TLS and real exporters on loopback."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest
from certificates import Authority, Signed
from documents import message, numbers

from pdtrace.analysis.collect import Collector
from pdtrace.analysis.security import SecurityError, Tls, Token

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
SECRET = "s3cret-and-long"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Signed:
    return authority.sign("server")


@pytest.fixture(scope="module")
def sender(authority: Authority) -> Signed:
    return authority.sign("sender")


def token(tmp_path: Path, text: str = SECRET + "\n") -> Token:
    path = tmp_path / "token"
    path.write_text(text)
    return Token.of_file(path)


def post(
    collector: Collector,
    number: int,
    trusted: Path | None = None,
    own: Signed | None = None,
    headers: Mapping[str, str] | None = None,
) -> int:
    """The status of one message over HTTP."""
    context = None
    if trusted is not None:
        context = ssl.create_default_context(cafile=trusted)
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
    request = urllib.request.Request(
        collector.http_address + "/v1/traces",
        message(number),
        {"content-type": "application/x-protobuf", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def call(
    collector: Collector,
    number: int,
    trusted: Path | None = None,
    own: Signed | None = None,
    headers: Mapping[str, str] | None = None,
) -> grpc.StatusCode:
    """The status of one message over gRPC."""
    if trusted is None:
        channel = grpc.insecure_channel(collector.grpc_address)
    else:
        pair = (own.key.read_bytes(), own.certificate.read_bytes()) if own else (None, None)
        credentials = grpc.ssl_channel_credentials(trusted.read_bytes(), *pair)
        channel = grpc.secure_channel(collector.grpc_address, credentials)
    with channel:
        send = channel.unary_unary(TRACES, None, None)
        try:
            send(message(number), timeout=30, metadata=tuple((headers or {}).items()))
        except grpc.RpcError as error:
            found: grpc.StatusCode = error.code()
            return found
    return grpc.StatusCode.OK


def test_tls_both_ways(tmp_path: Path, authority: Authority, server: Signed) -> None:
    """Who trusts the authority gets through; without TLS, or trusting another one, nobody."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").certificate
    tls = Tls(server.certificate, server.key)
    with Collector(tmp_path / "store", "127.0.0.1", 0, 0, tls) as collector:
        assert collector.http_address.startswith("https://127.0.0.1:")
        assert post(collector, 1, authority.certificate) == 200
        assert call(collector, 2, authority.certificate) is grpc.StatusCode.OK
        assert call(collector, 3) is grpc.StatusCode.UNAVAILABLE
        assert call(collector, 4, other) is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            post(collector, 5, other)
    assert sorted(numbers(tmp_path / "store")) == [1, 2]


def test_senders_with_certificates(
    tmp_path: Path, authority: Authority, server: Signed, sender: Signed
) -> None:
    """With an authority for senders, only those whom it signed get through."""
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").sign("stranger")
    tls = Tls(server.certificate, server.key, authority.certificate)
    trusted = authority.certificate
    with Collector(tmp_path / "store", "127.0.0.1", 0, 0, tls) as collector:
        assert post(collector, 1, trusted, sender) == 200
        assert call(collector, 2, trusted, sender) is grpc.StatusCode.OK
        for own in (None, stranger):
            assert call(collector, 3, trusted, own) is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(OSError):
                post(collector, 4, trusted, own)
    assert sorted(numbers(tmp_path / "store")) == [1, 2]


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ({}, False),
        ({"authorization": f"Bearer {SECRET}"}, True),
        ({"authorization": f"bearer  {SECRET} "}, True),
        ({"authorization": SECRET}, False),
        ({"authorization": "Bearer "}, False),
        ({"authorization": f"Bearer {SECRET}x"}, False),
        ({"authorization": f"Bearer {SECRET[:-1]}"}, False),
        ({"authorization": f"Basic {SECRET}"}, False),
        ({"authorization": "Bearer \udcff"}, False),
    ],
)
def test_a_token_is_known_or_not(tmp_path: Path, said: dict[str, str], allowed: bool) -> None:
    """Its scheme in any case, itself to the letter."""
    assert token(tmp_path).allows(said) is allowed


def test_senders_with_a_token(tmp_path: Path) -> None:
    """Both ways say why one is refused; what is refused is counted and not stored."""
    right = {"authorization": f"Bearer {SECRET}"}
    wrong = {"authorization": "Bearer guess"}
    with Collector(tmp_path / "store", "127.0.0.1", 0, 0, token=token(tmp_path)) as collector:
        assert post(collector, 1, headers=right) == 200
        assert call(collector, 2, headers=right) is grpc.StatusCode.OK
        for headers in ({}, wrong):
            assert post(collector, 3, headers=headers) == 401
            assert call(collector, 4, headers=headers) is grpc.StatusCode.UNAUTHENTICATED
        assert collector.counts.rejected == 4
        with urllib.request.urlopen(collector.http_address + "/healthz", timeout=30) as answer:
            assert answer.status == 200
    assert sorted(numbers(tmp_path / "store")) == [1, 2]


def test_tokens_that_cannot_be_used(tmp_path: Path) -> None:
    """A file that is not there, is empty, or holds more than a word."""
    with pytest.raises(SecurityError, match=r"^cannot read the token .*: No such file"):
        Token.of_file(tmp_path / "nothing")
    for text in ("", "\n", "two words", "naïve"):
        with pytest.raises(SecurityError, match=r"token is not one word of ASCII characters$"):
            token(tmp_path, text)


def test_certificates_that_cannot_be_used(
    tmp_path: Path, authority: Authority, server: Signed, sender: Signed
) -> None:
    """Said before anything listens, and the store is free again."""
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing")
    nothing = tmp_path / "nothing.pem"
    for tls, words in (
        (Tls(nothing, server.key), "No such file or directory"),
        (Tls(server.certificate, sender.key), "key values mismatch"),
        (Tls(junk, server.key), "not in PEM form"),
        (Tls(server.certificate, server.key, nothing), "No such file or directory"),
        (Tls(server.certificate, server.key, junk), "no certificate or crl found"),
    ):
        with pytest.raises(SecurityError, match=rf"^cannot use .*: .*{words}$"):
            Collector(tmp_path / "store", "127.0.0.1", 0, 0, tls).start()
    with Collector(tmp_path / "store", "127.0.0.1", 0, 0, Tls(server.certificate, server.key)):
        pass
