# Sets fedvi up, checks it and tries it out, from a clone.
# Needs Python 3.11 to 3.13, pip and make; everything else goes into $(VENV), from the locks.

PYTHON ?= python3
VENV ?= .venv
PROTOS_VENV ?= .venv-protos
BUILD_VENV ?= .venv-build
STUDIES ?= examples/heart-disease/study.toml examples/heart-disease/study-sums.toml
UV_VERSION := 0.13.8

BIN := $(VENV)/bin
PROTOS_BIN := $(PROTOS_VENV)/bin
BUILD_BIN := $(BUILD_VENV)/bin
# Stamps: an environment is brought up to date when its lock, or pyproject.toml, is newer.
CORE := $(VENV)/.fedvi-core
DEV := $(VENV)/.fedvi-dev
PROTOS := $(PROTOS_VENV)/.fedvi-protos
BUILD := $(BUILD_VENV)/.fedvi-build

# The environment's own pip or, where `venv` could not put one (Debian without python3-venv),
# the machine's. The project goes in last and apart: the locks hold all that it needs, hatchling
# included, so nothing is resolved and nothing is downloaded that has no hash.
define install
	@if $(1)/python -m pip --version >/dev/null 2>&1; \
	then pip="$(1)/python -m pip"; \
	else pip="$(PYTHON) -m pip --python $(1)/python"; \
	fi; \
	set -ex; \
	$$pip install --quiet --disable-pip-version-check --require-hashes -r $(2); \
	$(3)
endef

define create
$(PYTHON) -m venv $(1) || $(PYTHON) -m venv --clear --without-pip $(1)
endef

EDITABLE = $$pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

.DEFAULT_GOAL := help
.PHONY: help demo test end-to-end nightly lint docs bench device evidence dist lock protos clean
.NOTPARALLEL:  # two targets would install into one environment

help:  ## say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(CORE)  ## fit private posteriors over four hospitals, beside the pooled one: every noised answer seen, and masked sums
	@set -e; for study in $(STUDIES); do echo "$$study"; $(BIN)/fedvi simulate "$$study" --pooled; done

test: lint  ## before a commit: lint, then the fast tier of tests
	$(BIN)/pytest -n auto --dist loadfile -m "not nightly"

end-to-end: $(DEV)  ## what CI also runs: long tests of commands, servers, containers, pages, examples and the audit
	$(BIN)/pytest -n auto -m nightly tests/integration tests/unit/audit

nightly: $(DEV)  ## all that make test leaves: those, long tests of every part, wider searches, planted faults
	HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -n auto -m "nightly or hypothesis"

lint: $(DEV) $(PROTOS)  ## style, format, types, who may import whom, stubs up to date
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PROTOS_BIN)/python protos/generate.py --check

docs: $(DEV)  ## build the site of docs/ into build/docs, warnings as errors
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

bench: $(DEV)  ## run every script in benchmarks/
	@set -e; for script in benchmarks/*.py; do \
	  echo "$$script"; $(BIN)/python "$$script"; \
	done

evidence: $(DEV)  ## run the claims of docs/evidence.md that have no result; QUICK=1: all, cut; CHECK=1: the page beside its files
	$(BIN)/python -m evidence $(if $(QUICK),--quick --jobs 2) $(if $(CHECK),--check) $(CLAIM)

# An empty JAX_PLATFORMS lets JAX choose the accelerator; the tests compare it with the CPU beside it.
device: $(DEV)  ## on a machine with a GPU: what it must keep of the CPU's results, then the benchmarks
	JAX_PLATFORMS= $(BIN)/pytest -n 0 -rs tests/device
	JAX_PLATFORMS= $(BIN)/pytest -n 0 -k "whichever_row or on_its_place or on_no_row or row_it_stands" tests/unit/inference tests/contracts
	@set -e; for script in "randomness.py" "noise.py" "dpsvi.py --steps 500" "dpsvi.py --epoch" "dpsvi.py --memory 4096" "many_sites.py"; do \
	  echo "benchmarks/$$script"; JAX_PLATFORMS= $(BIN)/python benchmarks/$$script; \
	done

# The wheel is built without a download; the bill says what it was tested with: requirements.lock.
dist: $(BUILD)  ## the wheel, and its bill of materials (CycloneDX), into dist/
	rm -rf dist
	$(BUILD_BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BUILD_BIN)/python docker/wheel_sbom.py dist/*.whl requirements.lock

# Pins stay as they are where they still fit; `make lock UPGRADE=--upgrade` takes the newest.
# No index, host or address may reach these files: hashes say what to install, not where from.
COMPILE = $(BIN)/uv pip compile pyproject.toml $(UPGRADE) --quiet --universal --python-version 3.11 \
  --fork-strategy fewest --generate-hashes --no-emit-index-url --custom-compile-command "make lock"

lock: $(BIN)/python  ## resolve the dependencies of pyproject.toml again, for all platforms
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(COMPILE) --group build --extra report --extra parquet --output-file requirements.lock
	$(COMPILE) --group dev --extra report --extra parquet --constraints requirements.lock --output-file requirements-dev.lock
	$(COMPILE) --group server --excludes docker/not-in-server.txt --constraints requirements.lock --output-file requirements-server.lock
	$(subst pyproject.toml,docker/cuda.in,$(COMPILE)) --constraints requirements.lock --output-file requirements-cuda.lock
	$(subst pyproject.toml,--group distribution,$(COMPILE)) --constraints requirements.lock --output-file requirements-build.lock
	$(subst pyproject.toml,protos/requirements.in,$(COMPILE)) --output-file requirements-protos.lock

protos: $(PROTOS)  ## make the stubs of the wire again, after a change in protos/
	$(PROTOS_BIN)/python protos/generate.py

clean:  ## remove what was built or cached; the environment stays, and is checked at the next make
	rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -f $(CORE) $(DEV) $(PROTOS) $(BUILD)
	find . -path ./$(VENV) -prune -o -path ./$(PROTOS_VENV) -prune -o -path ./$(BUILD_VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "fedvi needs Python 3.11 to 3.13, and $(PYTHON) is $$($(PYTHON) -V 2>&1)"; \
	  echo; \
	  echo "hint: make PYTHON=/path/to/python3.12"; \
	  exit 1; \
	}
	$(call create,$(VENV))

$(PROTOS_BIN)/python:
	$(call create,$(PROTOS_VENV))

$(BUILD_BIN)/python:
	$(call create,$(BUILD_VENV))

# $(BIN)/python is order-only: it is a link, as old as the interpreter that it points to.
$(CORE): requirements.lock pyproject.toml | $(BIN)/python
	$(call install,$(BIN),requirements.lock,$(EDITABLE))
	@touch $@

# requirements-dev.lock holds all of requirements.lock, at the same versions.
$(DEV): requirements-dev.lock pyproject.toml | $(BIN)/python
	$(call install,$(BIN),requirements-dev.lock,$(EDITABLE))
	@touch $(CORE) $@

# Apart, since grpcio-tools 1.75.1 asks for protobuf 6 and fedvi runs on 7 here.
$(PROTOS): requirements-protos.lock | $(PROTOS_BIN)/python
	$(call install,$(PROTOS_BIN),requirements-protos.lock,:)
	@touch $@

# Apart, so that nothing of it gets into what it describes.
$(BUILD): requirements-build.lock | $(BUILD_BIN)/python
	$(call install,$(BUILD_BIN),requirements-build.lock,:)
	@touch $@
