"""One way to stop a command that runs until somebody stops it."""

import signal
from types import FrameType


def stop_on_signals() -> None:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt.

    Also where a shell started the command in the background, which makes it ignore Ctrl-C.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
