"""Any connector of vLLM's under `pdtrace.connector.any`: what vLLM's factory makes of it."""

import engine_imports  # noqa: F401  # first of all
import pytest
from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma

from pdtrace.connector import any as traced_connectors
from pdtrace.connector.any import traced, transfer_mode
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.settings import ConfigurationError

EXAMPLE = "vllm.distributed.kv_transfer.kv_connector.v1.example_connector"
DECODE_BENCH = "vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector"


def config(name: str, **extra: str) -> KVTransferConfig:
    """`--kv-transfer-config` for a connector of ours."""
    return KVTransferConfig(
        kv_connector=name,
        kv_connector_module_path="pdtrace.connector.any",
        kv_role="kv_both",
        kv_buffer_device="cpu",
        kv_connector_extra_config=extra,
    )


@pytest.mark.parametrize(
    ("settings", "module", "name", "hybrid_memory"),
    [
        (config("ExampleConnector"), EXAMPLE, "ExampleConnector", False),
        (config("DecodeBenchConnector"), DECODE_BENCH, "DecodeBenchConnector", True),
        (
            config("TracedConnector", connector="ExampleConnector"),
            EXAMPLE,
            "ExampleConnector",
            False,
        ),
        (
            config(
                "TracedConnector",
                connector="DecodeBenchConnector",
                connector_module_path=DECODE_BENCH,
            ),
            DECODE_BENCH,
            "DecodeBenchConnector",
            True,
        ),
    ],
    ids=["by-name", "by-name-hma", "by-configuration", "by-module-hma"],
)
def test_vllm_gets_a_subclass_with_the_connectors_own_name(
    settings: KVTransferConfig, module: str, name: str, hybrid_memory: bool
) -> None:
    """The same class at each look; SupportsHMA if and only if the connector has it."""
    found = KVConnectorFactory.get_connector_class(settings)
    assert found.__name__ == name
    assert [base.__module__ for base in found.__mro__[:2]] == ["pdtrace.connector.any", module]
    assert KVConnectorFactory.supports_hma_config(settings) is hybrid_memory
    assert supports_hma(found) is hybrid_memory
    assert KVConnectorFactory.get_connector_class(settings) is found
    assert traced(found.__mro__[1]) is found


def test_a_nixl_connector_is_the_one_with_all_hooks() -> None:
    """Nobody has to know which module is for which connector."""
    settings = config("TracedConnector", connector="NixlPushConnector")
    assert KVConnectorFactory.get_connector_class(settings).__module__ == "pdtrace.connector.push"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (config("TracedConnector"), r'needs kv_connector_extra_config\["connector"\]'),
        (
            config("TracedConnector", connector="ExmapleConnector"),
            "registers no connector 'ExmapleConnector', only .*ExampleConnector",
        ),
        (
            config("TracedConnector", connector="Mine", connector_module_path="nowhere.at_all"),
            "connector_module_path 'nowhere.at_all': No module named 'nowhere'",
        ),
        (
            config("TracedConnector", connector="Mine", connector_module_path=EXAMPLE),
            f"no connector 'Mine' in module '{EXAMPLE}'",
        ),
        (
            config("TracedConnector", connector="ReqMeta", connector_module_path=EXAMPLE),
            f"no connector 'ReqMeta' in module '{EXAMPLE}'",
        ),
        (
            config("TracedConnector", connector="MultiConnector"),
            "MultiConnector is not traced itself; .* of the child to trace",
        ),
        (
            config("MultiConnector"),
            "MultiConnector is not traced itself; .* of the child to trace",
        ),
    ],
    ids=["none", "misspelt", "no-module", "not-there", "no-connector", "multi", "multi-by-name"],
)
def test_a_connector_that_is_not_there_is_one_clear_sentence(
    settings: KVTransferConfig, sentence: str
) -> None:
    """When vLLM first asks for the class, before an engine starts."""
    with pytest.raises(ConfigurationError, match=f"^pdtrace: .*{sentence}"):
        KVConnectorFactory.get_connector_class(settings)


def test_a_misspelt_name_of_a_connector_is_told_by_vllm_and_by_us() -> None:
    """As an attribute that the module lacks, which is how vLLM asks."""
    with pytest.raises(AttributeError, match="ExmapleConnector not found") as raised:
        KVConnectorFactory.get_connector_class(config("ExmapleConnector"))
    assert "registers no connector 'ExmapleConnector'" in str(raised.value.__cause__)


def test_outside_of_the_factory_there_is_no_configuration_to_make_a_class_for() -> None:
    """`TracedConnector` is not one class."""
    with pytest.raises(AttributeError, match="made by vLLM's factory"):
        _ = traced_connectors.TracedConnector


@pytest.mark.parametrize(
    ("name", "extra", "mode"),
    [
        ("MooncakeConnector", {}, sc.MODE_PUSH),
        ("MoRIIOConnector", {}, sc.MODE_PUSH),
        ("MoRIIOConnector", {"read_mode": "true"}, sc.MODE_PULL),
        ("LMCacheConnectorV1", {}, sc.MODE_NONE),
    ],
)
def test_who_moves_the_blocks(name: str, extra: dict[str, str], mode: str) -> None:
    """Known of those whose direction is in their design; a store has none."""
    assert transfer_mode(name, config(name, **extra)) == mode
