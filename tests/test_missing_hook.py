"""A vLLM in which one hook point has gone: real engines serve, and say what is not traced."""

import json
from pathlib import Path

import pytest
from engines import complete, text

from pdtrace.analysis.store import read_spans
from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings, Mode
from pdtrace.connector.processes import EngineServer
from pdtrace.tracing import semconv as sc

pytestmark = pytest.mark.e2e

PROMPT = "the tide turned at noon and the boats swung round " * 4
IN_DECODE_WORKER = {"push": sc.SPAN_REGISTRATION, "pull": sc.SPAN_READ_SUBMIT}


@pytest.mark.covers("missing-hook", "push", "pull", on="engines")
@pytest.mark.parametrize(
    ("mode", "method", "absent"),
    [
        ("push", "_xfer_blocks_for_req", [sc.SPAN_WRITE_COMPLETE, sc.SPAN_WRITE_SUBMIT]),
        ("pull", "_background_nixl_handshake", [sc.SPAN_HANDSHAKE]),
    ],
)
def test_engines_serve_without_a_hook_point(
    mode: Mode, method: str, absent: list[str], engine_server: EngineServer, tmp_path: Path
) -> None:
    """One line in each engine's log, `pd.config` names it and its spans, the others are there."""
    settings = ClusterSettings(
        mode=mode,
        engine_setup=Path(__file__).with_name("engine_without_hook.py"),
        env={"TEST_LACKS": method},
        run_dir=tmp_path,
        prefix_caching=False,
    )
    with Cluster(settings, engine_server) as cluster:
        assert cluster.router_url is not None
        # Each engine alone is the reference: no blocks move to it.
        alone = text(complete(cluster.decodes[0].url, cluster.model, PROMPT, "alone"))
        for request_id in ("cold", "warm"):
            answer = complete(cluster.router_url, cluster.model, PROMPT, request_id)
            assert text(answer) == alone != ""
        store = cluster.store
    what = f"Nixl{mode.title()}ConnectorWorker.{method} does not exist"
    for engine in ("prefill-0", "decode-0"):
        log = (tmp_path / f"{engine}.log").read_text(encoding="utf-8")
        (line,) = [line for line in log.splitlines() if what in line]
        assert f"without it absent: {', '.join(absent)}" in line
        assert log.count("pdtrace: hook ") == 0
    every = read_spans([store]).records
    assert not {record.name for record in every} & set(absent)
    records = [record for record in every if record.attributes[sc.REQUEST_ID] == "warm"]
    assert {sc.SPAN_PREFILL, sc.SPAN_KV_WAIT, sc.SPAN_DECODE} <= {r.name for r in records}
    assert [record.name for record in records if record.status == 2] == []
    (telling,) = [record for record in records if record.name == IN_DECODE_WORKER[mode]]
    config = json.loads(str(telling.resource[sc.CONFIG]))
    assert (config["missing_hooks"], config["absent_spans"]) == ([what], absent)
