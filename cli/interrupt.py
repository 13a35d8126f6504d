"""One way to stop a command that runs until somebody stops it."""

import signal


def stop_on_signals() -> None:
    """Ctrl-C and SIGTERM end in KeyboardInterrupt.

    Also where a shell started the command in the background, which makes it ignore Ctrl-C. It is
    Python's own handler that is set, since asyncio replaces that one by an orderly cancellation
    while it runs, and no other.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
