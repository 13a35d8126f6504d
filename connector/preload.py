"""What every engine of a cluster needs, imported and prepared once in the engine server.

Imports only, and nothing that starts a thread: a process that has threads must not be forked.
"""

import gc
import importlib
import os
from typing import Any, Final

_NEEDED: Final = (
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl",
    "vllm.entrypoints.cli.serve",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
_API: Final = "vllm.entrypoints"
_WANTED: Final = (
    # The API server, which vLLM puts together when it starts.
    f"{_API}.anthropic.api_router",
    f"{_API}.cohere.api_router",
    f"{_API}.generate.api_router",
    f"{_API}.generate.generative_scoring.api_router",
    f"{_API}.generate.generative_scoring.serving",
    f"{_API}.generate.structured_decisions.api_router",
    f"{_API}.openai.chat_completion.api_router",
    f"{_API}.openai.chat_completion.batch_serving",
    f"{_API}.openai.completion.api_router",
    f"{_API}.openai.models.api_router",
    f"{_API}.openai.responses.api_router",
    f"{_API}.scale_out.factories",
    f"{_API}.scale_out.derender.api_router",
    f"{_API}.scale_out.render.api_router",
    f"{_API}.scale_out.token_in_token_out.api_router",
    f"{_API}.serve.elastic_ep.api_router",
    f"{_API}.serve.instrumentator.metrics",
    f"{_API}.serve.instrumentator.offline_docs",
    f"{_API}.serve.lora.api_router",
    f"{_API}.serve.profile.api_router",
    f"{_API}.serve.sagemaker.api_router",
    f"{_API}.serve.tokenize.api_router",
    f"{_API}.serve.utils.fingerprint",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "vllm.plugins.lora_resolvers.filesystem_resolver",
    "vllm.plugins.lora_resolvers.hf_hub_resolver",
    "vllm.renderers.hf",
    "vllm.v1.metrics.reader",
    # EngineCore and its worker.
    "setproctitle",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.pool.flash_maxsim.flash_maxsim_rerank",
)
"""Named one by one because vLLM imports them inside of functions; some versions lack some."""


def preload() -> None:
    """Leave the process as an engine finds it best: all imported, kernels chosen, heap frozen."""
    gc.disable()
    for name in _NEEDED:
        importlib.import_module(name)
    for name in _WANTED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"engine server: each engine imports {name} itself: {error}", flush=True)
    choose_kernels()
    # Engines share these objects with the server: a collector that walks them in each engine copies
    # every page and takes seconds.
    gc.enable()
    gc.collect()
    gc.freeze()
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        print(f"engine server has {len(threads)} threads: forks may hang", flush=True)


def choose_kernels() -> None:
    """Put vLLM's CPU kernels in the place of Triton's, for all engines.

    vLLM looks for them in every object of every module, a second's work in each worker that also
    copies the pages it looks at.
    """
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    if hasattr(platform, "register_triton_kernel_overrides"):
        platform.register_triton_kernel_overrides()
        platform.register_triton_kernel_overrides = classmethod(lambda cls: None)
