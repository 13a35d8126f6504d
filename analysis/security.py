"""Who may send to the collector: TLS, certificates of senders, a token."""

import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc

_SCHEME: Final = "bearer "


class SecurityError(Exception):
    """A certificate, key or token that cannot be used; one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: `certificate` (with its chain) and its `key`; `client_ca`, if senders must have a
    certificate too, which one of its authorities has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Raises `SecurityError` for files that cannot be used, before anything listens."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, _Encrypted) as error:
            files = f"the certificate {self.certificate} with the key {self.key}"
            raise SecurityError(f"cannot use {files}: {_why(error)}") from error
        if self.client_ca is None:
            return
        try:
            context.load_verify_locations(self.client_ca)
        except OSError as error:
            raise SecurityError(f"cannot use {self.client_ca}: {_why(error)}") from error

    def of_grpc(self) -> grpc.ServerCredentials:
        """For a gRPC server."""
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            None if self.client_ca is None else self.client_ca.read_bytes(),
            require_client_auth=self.client_ca is not None,
        )

    def of_uvicorn(self) -> dict[str, Any]:
        """Options of an HTTP server."""
        required = ssl.CERT_NONE if self.client_ca is None else ssl.CERT_REQUIRED
        return {
            "ssl_certfile": self.certificate,
            "ssl_keyfile": self.key,
            "ssl_ca_certs": None if self.client_ca is None else str(self.client_ca),
            "ssl_cert_reqs": required,
        }


class _Encrypted(Exception):
    """A key that asks for a password: there is nobody to type it."""


def _no_password() -> str:
    raise _Encrypted("the key has a password")


def _why(error: Exception) -> str:
    """OpenSSL's words without the place in its source, the system's without the file's name."""
    if isinstance(error, ssl.SSLError):
        # For what it cannot parse it names no reason but its parser.
        return error.reason.replace("_", " ").lower() if error.reason else "not in PEM form"
    return getattr(error, "strerror", None) or str(error)


@dataclass(frozen=True, slots=True)
class Token:
    """What senders say in their `authorization: Bearer …` header."""

    secret: bytes

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """The file's only line. Raises `SecurityError`."""
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise SecurityError(f"cannot read the token {path}: {_why(error)}") from error
        if not secret or not secret.isascii() or any(byte <= 0x20 for byte in secret):
            raise SecurityError(f"the token {path} is not one word of ASCII characters")
        return cls(secret)

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Whether the headers (names in lower case) hold it; takes as long for any wrong one."""
        said = headers.get("authorization", "")
        if said[: len(_SCHEME)].lower() != _SCHEME:
            return False
        given = said[len(_SCHEME) :].strip().encode("utf-8", "replace")
        return hmac.compare_digest(given, self.secret)
