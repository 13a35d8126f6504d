# Two commands: `make demo` and `make test`. Both prepare .venv first.
PYTHON ?= python3.11
# Passed to pip: another index, say, where torch's CPU build has one of its own.
PIP_ARGS ?=
# Options of pytest, for both of its runs.
PYTEST_ARGS ?=
BIN := .venv/bin
FOLDERS := tracing connector analysis dashboards cli

.PHONY: demo test test-vllm-0.31 venv lint bench clean
.DEFAULT_GOAL := demo

demo: venv
	$(BIN)/pdtrace demo

# Real engines and NIXL agents need the machine for themselves; all other tests run side by side.
test: venv lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not e2e and not nixl" $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "e2e or nixl" $(PYTEST_ARGS)

# The end-to-end tests on vLLM 0.31, in an environment of its own (4 GB); see docs/versions.md.
test-vllm-0.31: .venv-0.31/installed
	.venv-0.31/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		-C editable_mode=strict -e .
	.venv-0.31/bin/python -m pytest tests/test_two_engines.py $(PYTEST_ARGS)

.venv-0.31/installed: requirements/lock.txt requirements/vllm-0.31.txt
	$(PYTHON) -m venv .venv-0.31
	.venv-0.31/bin/pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) -r requirements/lock.txt
	.venv-0.31/bin/pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) -r requirements/vllm-0.31.txt
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy tests benchmarks

bench: venv
	$(BIN)/python benchmarks/hot_path.py
	$(BIN)/python benchmarks/overhead.py

venv: .venv/installed .venv/editable

# The pinned set is complete, so nothing is resolved; see requirements/lock.txt.
.venv/installed: requirements/lock.txt requirements/check.py
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) -r requirements/lock.txt
	$(BIN)/python requirements/check.py
	touch $@

# A strict editable install links file by file: a new module (a changed folder) needs it again.
.venv/editable: .venv/installed pyproject.toml $(FOLDERS)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		-C editable_mode=strict -e .
	touch $@

clean:
	rm -rf .venv .venv-0.31 build dist runs *.egg-info
