"""What gets installed: modules under their public names, light imports, the wheel's contents."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, entry_points, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("tracing", "connector", "analysis", "dashboards", "cli")
MODULES = sorted(
    f"pdtrace.{package}" if path.stem == "__init__" else f"pdtrace.{package}.{path.stem}"
    for package in PACKAGES
    for path in (ROOT / package).glob("*.py")
)
HEAVY = {"pandas", "numpy", "vllm", "nixl", "nixl_cu12", "nixl_cu13", "torch", "pyarrow"}
PDTRACE = "import sys; from pdtrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
PLAIN = {
    name: value
    for name, value in os.environ.items()
    if name != "PDTRACE" and not name.startswith("OTEL_")
}


def python(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, without anybody's telemetry settings."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(
        command, env={**PLAIN, **environment}, capture_output=True, text=True, timeout=240
    )


def loaded_by(code: str, *args: str) -> set[str]:
    """Top-level modules that are loaded after `code`."""
    told = "\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = python(code + told, *args)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


IMPORT_ALL = """
import importlib, json, os, sys
failed = {}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        if not (module.__doc__ or "").strip():
            failed[name] = "no docstring"
    except Exception as error:
        failed[name] = repr(error)
print("\\n" + json.dumps(failed), flush=True)
os._exit(0)  # to take vLLM apart costs seconds
"""


def test_every_module_imports_under_its_public_name_and_says_what_it_is() -> None:
    """Also those that need vLLM, in one interpreter."""
    done = python(IMPORT_ALL, *MODULES)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pdtrace.tracing",
        "import pdtrace.tracing.recorder, pdtrace.tracing.provider, pdtrace.tracing.testing",
        "import pdtrace.connector",
        "import pdtrace.connector.plugin",
        "from pdtrace.connector.plugin import register; register()",
    ],
)
def test_what_a_serving_process_loads_unasked_is_light(code: str) -> None:
    """Neither data frames nor the engine nor its transport."""
    assert loaded_by(code) & HEAVY == set()


def test_the_plugin_is_announced_to_the_engine() -> None:
    """The group that vLLM loads in each of its processes."""
    found = {entry.name: entry.value for entry in entry_points(group="vllm.general_plugins")}
    assert found["pdtrace"] == "pdtrace.connector.plugin:register"


def test_help_loads_no_sub_command() -> None:
    """Asking what there is must not cost what it needs."""
    loaded = loaded_by("from pdtrace.cli.main import main; assert main(['--help']) == 0")
    assert loaded & (HEAVY | {"typer", "rich", "grpc", "aiohttp", "starlette"}) == set()
    assert {name for name in loaded if name.startswith("pdtrace.cli.")} == {"pdtrace.cli.main"}


def test_the_command_tells_its_version() -> None:
    """That of the installed distribution."""
    done = python(PDTRACE, "--version")
    assert (done.returncode, done.stdout) == (0, f"pdtrace {version('pdtrace')}\n")


def test_an_unknown_command_is_refused_in_one_sentence() -> None:
    """Status 2, nothing on standard output."""
    done = python(PDTRACE, "spilt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pdtrace: no command 'spilt'; 'pdtrace --help' lists them\n"


def test_the_base_install_needs_opentelemetry_alone() -> None:
    """It lives in a serving engine's environment."""
    requirements = distribution("pdtrace").requires or []
    base = [text for text in requirements if "extra ==" not in text]
    names = [re.split(r"[^a-z0-9-]", text)[0] for text in base]
    assert names == [
        "opentelemetry-api",
        "opentelemetry-sdk",
        "opentelemetry-exporter-otlp-proto-grpc",
        "opentelemetry-exporter-otlp-proto-http",
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel of a clean copy of the tree: what a build leaves in the tree cannot slip in."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tree / package, ignore=ignored)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    options = ["--no-build-isolation", "--wheel-dir", str(out), str(tree)]
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=240)
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_every_file_of_the_five_packages(wheel: zipfile.ZipFile) -> None:
    """Modules, type markers and data, and nothing of tests or benchmarks."""
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {
        f"pdtrace/{package}/{path.name}"
        for package in PACKAGES
        for path in [*(ROOT / package).glob("*.py"), ROOT / package / "py.typed"]
    }
    assert modules <= names
    data = {name for name in names - modules}
    assert {Path(name).suffix for name in data} <= {".json", ".yaml", ".yml"}
    assert {name.split("/")[1] for name in data} <= {"dashboards"}


def test_the_wheel_has_the_licence(wheel: zipfile.ZipFile) -> None:
    """Beside its metadata."""
    assert [name for name in wheel.namelist() if name.endswith("LICENSE")] == [
        f"pdtrace-{version('pdtrace')}.dist-info/licenses/LICENSE"
    ]
