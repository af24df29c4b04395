# `make` shows what there is. Needs GNU make, a POSIX shell and Python 3.11.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3.11
VENV ?= .venv
CONFIG ?= configs/local.yaml
PORT ?= 8000
BENCH ?= demo
run := $(VENV)/bin/python
# As it was typed: make must not read its $, and the shell gets it as a variable, so that nothing in it is executed.
override Q := $(value Q)
export Q

.PHONY: help install models demo serve ask test check format bench peers lock clean

help: ## What there is
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Make .venv with the pinned packages (about 3.6 GB; done once, goes on where it stopped)

# The stamp is the last thing made, so an interrupted install goes on with the next call.
$(VENV)/.installed: requirements/install.sh requirements/cpu.txt requirements/dev.txt
	@PYTHON="$(PYTHON)" bash requirements/install.sh "$(VENV)" requirements/cpu.txt requirements/dev.txt

models: install ## Unpack the small models into the cache (done once)
	@$(run) -m assay prepare

demo: install ## Index the project's own documentation, start the graph, ask it one question, stop
	@$(run) -m deployments.launch $(CONFIG) --demo --port $(PORT)

serve: install ## Start the graph and leave it running until Ctrl-C
	@$(run) -m deployments.launch $(CONFIG) --port $(PORT)

ask: install ## Ask the running graph: make ask Q="How is the index published?"
	@test -n "$$Q" || { echo 'Say what to ask: make ask Q="How is the index published?"' >&2; exit 2; }
	@$(run) -m assay ask --url "http://127.0.0.1:$(PORT)" -- "$$Q"

test: models ## All tests: unit, wiring, integration with the real small model (T="..." for pytest's own options)
	@$(run) -m pytest $(T)

check: install ## Lint, types and format
	@$(run) -m ruff check .
	@$(run) -m ruff format --check .
	@$(run) -m mypy

format: install ## Put the code in format
	@$(run) -m ruff check --fix-only --quiet .
	@$(run) -m ruff format .

bench: models ## Measure: make bench BENCH=demo
	@$(run) -m bench.$(BENCH)

peers: ## Make .venv-peers: the systems that `make bench BENCH=search_peers` and `loop_peers` compare with (3.3 GB)
	@PYTHON="$(PYTHON)" bash requirements/install.sh .venv-peers requirements/peers.txt

lock: install ## Resolve requirements/*.txt again from requirements/*.in (UPGRADE=1 takes newer versions)
	@$(run) requirements/lock.py $(if $(UPGRADE),--upgrade)

clean: ## Remove the environment, the index and the caches of this folder (the models' cache stays)
	@rm -rf "$(VENV)" .venv-peers .assay .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
