"""The import layers: which package may import what, and where the public names are spelt."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdtrace.tracing import semconv as sc

ROOT = Path(__file__).parent.parent
PACKAGES = ("tracing", "connector", "analysis", "dashboards", "cli")

ALLOWED: dict[str, tuple[str, ...]] = {
    "tracing": ("pdtrace.tracing", "opentelemetry"),
    "connector": ("pdtrace.connector", "pdtrace.tracing", "opentelemetry"),
    "analysis": (
        "pdtrace.analysis", "pdtrace.tracing.semconv", "pandas", "numpy", "pyarrow", "orjson",
    ),
    "dashboards": ("pdtrace.dashboards", "pdtrace.tracing.semconv"),
}  # fmt: skip
"""What every module of a package may import, next to the standard library."""

_HOST = ("vllm",)
_SERVER = ("starlette", "uvicorn", "aiohttp", "orjson")
ONLY_IN: dict[str, dict[str, tuple[str, ...]]] = {
    "connector": {
        "push": _HOST,
        "pull": _HOST,
        "any": _HOST,
        "notes": _HOST,
        "engine_server": ("vllm", "nixl"),
        "cpu_rig": ("vllm", "nixl"),
        "preload": _HOST,
        "doctor_otlp": ("grpc",),
        "demo_model": ("torch", "transformers", "tokenizers", "safetensors"),
        "router*": _SERVER,
        "sse": _SERVER,
        "workload": _SERVER,
    },
    "analysis": {
        "otlp": ("opentelemetry.proto", "google.protobuf"),
        "collect": ("grpc", "starlette", "uvicorn"),
        "security": ("grpc",),
        "perfetto": ("perfetto.protos",),
        "live": ("httpx",),
        "workers": ("distributed",),
        "files": ("fsspec",),
    },
    "dashboards": {"*": ("grafana_client", "grafana_foundation_sdk")},
}
"""What single modules may import besides."""

NEVER: dict[str, tuple[str, ...]] = {"analysis": ("opentelemetry.sdk",)}


def modules(package: str) -> list[Path]:
    """The modules of one package."""
    found = sorted((ROOT / package).glob("*.py"))
    assert found, f"no modules in {package}/"
    return found


def imports(path: Path) -> Iterator[str]:
    """Everything a module imports, anywhere in it: in functions and for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level if node.level else _target(node)


def _target(node: ast.ImportFrom) -> str:
    """`from pdtrace.tracing import semconv` imports `pdtrace.tracing.semconv`."""
    module = node.module or ""
    if len(node.names) == 1 and module.startswith("pdtrace"):
        return f"{module}.{node.names[0].name}"
    return module


def within(name: str, allowed: tuple[str, ...]) -> bool:
    """Whether `name` is one of `allowed`, or inside it."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)


def allowed_in(package: str, stem: str) -> tuple[str, ...]:
    """The row of the table for one module."""
    special = ONLY_IN.get(package, {})
    own = [names for pattern, names in special.items() if Path(stem).match(pattern)]
    return ALLOWED[package] + tuple(name for names in own for name in names)


@pytest.mark.parametrize("package", list(ALLOWED))
def test_a_package_imports_only_what_its_layer_allows(package: str) -> None:
    """One direction: connector to tracing, dashboards and analysis to the names alone."""
    broken = [
        f"{package}/{path.name} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names
        and (
            not within(name, allowed_in(package, path.stem)) or within(name, NEVER.get(package, ()))
        )
    ]
    assert broken == []


def test_nothing_imports_the_command_line() -> None:
    """`cli` is where the other packages meet."""
    others = [path for package in PACKAGES if package != "cli" for path in modules(package)]
    assert [path.name for path in others for name in imports(path) if "pdtrace.cli" in name] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_are_absolute(package: str) -> None:
    """A package is mapped to its public name; a relative import would depend on the folder."""
    found = [path.name for path in modules(package) for name in imports(path) if name[:1] == "."]
    assert found == []


def test_the_names_import_nothing() -> None:
    """`semconv` is the one module that all others may import."""
    assert set(imports(ROOT / "tracing" / "semconv.py")) == {"typing"}


def _strings(path: Path) -> Iterator[str]:
    """String literals of a module that are not docstrings."""
    tree = ast.parse(path.read_text(), str(path))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


OWN_NAME = re.compile(r"pd\.([a-z_]+(\.[a-z_]+)*)?")


def test_names_of_spans_and_attributes_are_spelt_once() -> None:
    """A literal `pd.…` anywhere but in semconv would drift from it."""
    found = [
        f"{package}/{path.name}: {text!r}"
        for package in PACKAGES
        for path in modules(package)
        if (package, path.stem) != ("tracing", "semconv")
        for text in _strings(path)
        if OWN_NAME.fullmatch(text)
    ]
    assert found == []


def test_the_search_for_names_finds_every_name() -> None:
    """The expression above knows every `pd.` constant of semconv."""
    own = [v for v in vars(sc).values() if isinstance(v, str) and v.startswith("pd.")]
    assert len(own) > 40
    assert [name for name in own if not OWN_NAME.fullmatch(name)] == []
