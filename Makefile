# Everything a checkout needs: `make train`, `make test`. Each sets up .venv by itself.
# Needed on the machine: Python 3.11 with venv, gcc, g++, make. Another interpreter: PYTHON=...

PYTHON ?= python3.11
VENV ?= .venv
RUN ?= runs/tiny
TEST_WORKERS ?= 2
PYTEST_ARGS ?=

# The checkout's root must never be on the import path: its folders are not the packages.
export PYTHONSAFEPATH := 1

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help venv train test test-extra test-all study bench lint format wheel lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install it or name another: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

venv: $(READY) ## make .venv with the locked versions and the package, editable

train: $(READY) ## pre-train the tiny preset under Ray on two hosts; goes on with an unfinished run
	@if [ -n "$$(ls -A $(RUN) 2>/dev/null)" ]; then resume=--resume; fi; \
	$(BIN)/spark-dist train tiny --launcher ray --hosts 2 --run-dir $(RUN) $$resume

test: $(READY) ## the fast tests
	$(PYTEST) -n $(TEST_WORKERS) --dist loadfile

test-extra: $(READY) ## the slow, cluster and packaging tests
	$(PYTEST) -m "(slow or cluster or packaging) and not interop"

test-all: test test-extra ## every test but interop

study: $(READY) ## the full matrices behind docs/: hours
	@set -e; for program in benchmarks/study_*.py; do echo "== $$program"; $(BIN)/python $$program; done

bench: $(READY) ## step time of dense and sparse training, interleaved
	$(BIN)/spark-dist bench train

lint: $(READY) ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(READY) ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(READY) ## build the source distribution and the wheel into dist/
	$(BIN)/python -m build --no-isolation .

lock: $(READY) ## rewrite requirements.lock from .venv and NEWER=path/to/a/newer/venv/bin/python
	$(BIN)/python .ci/lock.py $(BIN)/python $(NEWER) > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean: ## remove caches and build products; runs and .venv stay
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
