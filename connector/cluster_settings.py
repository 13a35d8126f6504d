"""What a local cluster is made of: command line and environment of each of its processes."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pdtrace.connector import cpu_rig, demo_model

Mode = Literal["push", "pull", "none"]
Layout = Literal["uni", "mp"]
Role = Literal["prefill", "decode", "both"]

HOST: Final = "127.0.0.1"
SERVED_MODEL: Final = "demo"
"""The name under which every engine serves its model."""
ENGINE_SETUP: Final = "PDTRACE_CLUSTER_ENGINE_SETUP"
"""The variable that tells an engine of the cluster which file to run before vLLM starts."""
_CONNECTORS: Final = {"push": "NixlPushConnector", "pull": "NixlPullConnector"}
_KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}
_KV_CACHE: Final = {"small": "64M", "large-kv": "1G"}
_SHUTDOWN_SECONDS: Final = 5
"""With vLLM's default of 0 EngineCore is killed at once and its last spans are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """`mode="none"` is one plain engine without connector or router, to compare output with.

    `traced`: True loads our connector by its module path, "plugin" lets `PDTRACE=1` do it with an
    unchanged configuration, False is vLLM as it comes.
    """

    mode: Mode = "push"
    prefills: int = 1
    decodes: int = 1
    model: str = "small"
    layout: Layout = "uni"
    traced: bool | Literal["plugin"] = True
    untraced: frozenset[str] = frozenset()
    """Names of engines that nevertheless run vLLM as it comes."""
    router: bool = True
    router_traced: bool = True
    """Whether the router sends spans, where anybody does."""
    policy: str | None = None
    """What the router is told with `--policy`."""
    flags: tuple[str, ...] = ()
    prefill_flags: tuple[str, ...] = ()
    decode_flags: tuple[str, ...] = ()
    kv_config: Mapping[str, Any] = field(default_factory=dict)
    """Merged into each engine's `--kv-transfer-config`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Wins over everything that we set for engines and router."""
    engine_setup: Path | None = None
    """A Python file to run in each engine's process before vLLM starts: to plant or watch there."""
    prefix_caching: bool = True
    kv_cache: str | None = None
    """Memory for the KV cache, as `--kv-cache-memory-bytes` takes it."""
    engine_spans: bool = False
    """Also vLLM's own spans (`--otlp-traces-endpoint`)."""
    run_dir: Path | None = None
    """Logs and ready files; a fresh temporary directory if not given. Never deleted by us."""
    store: Path | None = None
    """Where the collector keeps spans; `store` in the run directory if not given."""
    start_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.mode != "none" and (self.prefills < 1 or self.decodes < 1):
            raise ValueError("a cluster needs at least one prefill and one decode engine")

    def wants_collector(self) -> bool:
        """Whether anybody sends spans."""
        return bool(self.traced) or self.engine_spans

    def roles(self) -> list[tuple[str, Role]]:
        """Name and role of each engine; the name is also its engine id."""
        if self.mode == "none":
            return [("engine-0", "both")]
        prefills: list[tuple[str, Role]] = [
            (f"prefill-{i}", "prefill") for i in range(self.prefills)
        ]
        return prefills + [(f"decode-{i}", "decode") for i in range(self.decodes)]

    def model_directory(self) -> str:
        """A demo model by name (written on first use), or any directory."""
        if self.model in demo_model.MODELS:
            return str(demo_model.model_path(self.model))
        return self.model

    def engine_argv(self, name: str, role: Role, port: int, collector: str | None) -> list[str]:
        """Arguments of `vllm serve`; the user's flags come last and win."""
        argv = [
            self.model_directory(),
            f"--served-model-name={SERVED_MODEL}",
            f"--host={HOST}",
            f"--port={port}",
            f"--kv-cache-memory-bytes={self.kv_cache or _KV_CACHE.get(self.model, '1G')}",
            f"--shutdown-timeout={_SHUTDOWN_SECONDS}",
            *cpu_rig.ENGINE_FLAGS,
            *cpu_rig.layout_flags(self.layout),
            *([f"--dtype={demo_model.DTYPE}"] if self.model in demo_model.MODELS else []),
            "--enable-prefix-caching" if self.prefix_caching else "--no-enable-prefix-caching",
        ]
        if self.mode != "none":
            argv.append(f"--kv-transfer-config={json.dumps(self.kv_transfer_config(name, role))}")
        if self.engine_spans and collector is not None:
            argv.append(f"--otlp-traces-endpoint=http://{collector}")
        by_role = {"prefill": self.prefill_flags, "decode": self.decode_flags, "both": ()}
        return [*argv, *self.flags, *by_role[role]]

    def kv_transfer_config(self, name: str, role: Role) -> dict[str, Any]:
        """vLLM's own connector, or ours under the same name from our module."""
        config: dict[str, Any] = {
            "kv_connector": _CONNECTORS[self.mode],
            "kv_role": _KV_ROLES[role],
            "engine_id": name,
        }
        if self.traced is True and name not in self.untraced:
            config["kv_connector_module_path"] = f"pdtrace.connector.{self.mode}"
        return {**config, **self.kv_config}

    def engine_env(self, name: str, side_port: int, collector: str | None) -> dict[str, str]:
        """The whole environment of one engine."""
        traced = name not in self.untraced
        return {
            **self.base_env(collector if traced else None),
            **server_env(),
            **cpu_rig.layout_env(self.layout),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            **({"PDTRACE": "1"} if self.traced == "plugin" and traced else {}),
            **({ENGINE_SETUP: str(self.engine_setup)} if self.engine_setup else {}),
            **self.env,
        }

    def router_argv(
        self, prefills: list[str], decodes: list[str], port: int, ready_file: Path
    ) -> list[str]:
        """Command line of the router."""
        argv = [sys.executable, "-m", "pdtrace.connector.router", "--mode", self.mode]
        argv += [part for url in prefills for part in ("--prefill", url)]
        argv += [part for url in decodes for part in ("--decode", url)]
        argv += ["--port", str(port), "--ready-file", str(ready_file)]
        return argv + (["--policy", self.policy] if self.policy else [])

    def base_env(self, collector: str | None) -> dict[str, str]:
        """Ours, without what would trace an untraced engine, with the collector if there is one."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name != "PDTRACE" and not name.startswith("OTEL_")
        }
        if collector is None:
            return inherited
        return {
            **inherited,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            # Somebody looks at the store while the cluster runs.
            "PDTRACE_SEND_EVERY_S": "0.5",
        }


def server_env() -> dict[str, str]:
    """What must be set already while the engine server imports vLLM."""
    return {**cpu_rig.ENGINE_ENV, "VLLM_CACHE_ROOT": str(demo_model.cache_dir() / "vllm")}


def collector_argv(store: Path, ready_file: Path) -> list[str]:
    """Command line of `pdtrace collect`, which this folder may start but not import."""
    program = "from pdtrace.cli.main import main; raise SystemExit(main())"
    argv = [sys.executable, "-c", program, "collect", str(store)]
    return [*argv, "--grpc-port", "0", "--http-port", "0", "--ready-file", str(ready_file)]
