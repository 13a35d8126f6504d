"""Runs inside an engine of a test: its vLLM lacks one method, as far as pdtrace can see.

vLLM itself finds it as before. `TEST_LACKS` names it.
"""

import os
import sys
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker


def hide(owner: Any, name: str) -> None:
    """Let only vLLM see a method of a class."""
    method = owner.__dict__[name]

    def lookup(self: Any, wanted: str) -> Any:
        seen_by = sys._getframe(1).f_globals["__name__"]
        if wanted == name and not seen_by.startswith("pdtrace."):
            return method.__get__(self)
        raise AttributeError(wanted)

    delattr(owner, name)
    owner.__getattr__ = lookup


for worker in (NixlPushConnectorWorker, NixlPullConnectorWorker):
    for owner in worker.__mro__:
        if os.environ["TEST_LACKS"] in owner.__dict__:
            hide(owner, os.environ["TEST_LACKS"])
