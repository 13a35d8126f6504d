"""How a request can fail in the router: one sentence, one HTTP status, one `error.type`."""

from pdtrace.tracing.semconv import ERROR_ABORTED, ERROR_PEER_LOST


class RouterError(Exception):
    """Ends a user request; `str()` is the sentence for the client."""

    def __init__(self, status: int, error_type: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.error_type = error_type


class EngineUnreachable(RouterError):
    """No connection: nothing was sent, so another engine may be tried."""

    def __init__(self, sentence: str) -> None:
        super().__init__(503, ERROR_PEER_LOST, sentence)


class NoEngine(RouterError):
    """Every engine of one role was tried and none could be reached."""

    def __init__(self, sentence: str) -> None:
        super().__init__(503, ERROR_PEER_LOST, sentence)


class Refused(RouterError):
    """An engine's 4xx: the client's own mistake, passed on unchanged."""

    def __init__(self, status: int, sentence: str, body: bytes, content_type: str) -> None:
        super().__init__(status, str(status), sentence)
        self.body = body
        self.content_type = content_type


class ClientLeft(RouterError):
    """The client hung up; nobody reads the sentence."""

    def __init__(self) -> None:
        super().__init__(499, ERROR_ABORTED, "the client closed the connection")


def error_type_of(error: BaseException) -> str:
    """`error.type` of whatever ended a leg or a request; a cancelled one was aborted."""
    if isinstance(error, RouterError):
        return error.error_type
    return ERROR_ABORTED if not isinstance(error, Exception) else type(error).__name__
