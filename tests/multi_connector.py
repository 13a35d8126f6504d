"""Engines with a MultiConnector: a NIXL child, and beside it a store without hybrid memory."""

import json
from pathlib import Path
from typing import Any


def connector_flag(**config: Any) -> str:
    """`--kv-transfer-config`; the last one given counts."""
    return f"--kv-transfer-config={json.dumps(config)}"


def multi_flags(directory: Path, child: dict[str, Any]) -> dict[str, Any]:
    """`prefill_flags` and `decode_flags` of `ClusterSettings`; each engine has a store of its own.

    vLLM asks the NIXL child first. It turns hybrid memory off, and calls `request_finished` where
    it otherwise calls `request_finished_all_groups`.
    """
    return {
        "prefill_flags": (_flag(directory, "prefill-0", {"kv_role": "kv_producer", **child}),),
        "decode_flags": (_flag(directory, "decode-0", {"kv_role": "kv_consumer", **child}),),
    }


def _flag(directory: Path, engine: str, child: dict[str, Any]) -> str:
    store = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(directory / f"kv-{engine}")},
    }
    return connector_flag(
        kv_connector="MultiConnector",
        kv_role=child["kv_role"],
        engine_id=engine,
        kv_connector_extra_config={"connectors": [child, store]},
    )
