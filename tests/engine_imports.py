"""Loads vLLM for tests that use its classes in this process: import before anything of it.

Its libraries warn while they load, and warnings are errors in tests.
"""

import os
import warnings

os.environ.setdefault("UCX_NET_DEVICES", "lo")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm.distributed.kv_transfer.kv_connector.v1.nixl  # noqa: F401
    import vllm.v1.core.sched.output
    import vllm.v1.request  # noqa: F401
