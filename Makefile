# Everything a newcomer types. Each target but help, setup and clean sets up first if that is needed.
.DEFAULT_GOAL := help
.PHONY: help setup serve demo test lint bench paper paper-quick clean

BIN := .venv/bin
GRAPH ?= configs/local-cpu.yaml
ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## build .venv from a bare Python 3.11 (a few minutes, once)
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

serve: setup ## serve GRAPH (configs/local-cpu.yaml) on this machine; ARGS="--port 8000" and the like go to ampd serve
	@exec $(BIN)/ampd serve $(GRAPH) $(ARGS)

demo: setup ## play scripted agent sessions and print each round's path and figures
	@exec $(BIN)/ampd demo $(ARGS)

test: setup ## run the tests; ARGS="-k launch" and the like go to pytest
	@exec $(BIN)/python -m pytest $(ARGS)

lint: setup ## ruff, mypy --strict and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_arrows.py

bench: setup ## the benchmarks of the scheduling core, or ARGS="routing ledger" and the like (docs/bench.md has them all)
	@exec $(BIN)/python -m benchmarks $(ARGS)

paper: setup ## the paper's experiments in simulation, to results/paper.json with a table and figures (an hour at most; goes on after a break)
	@exec $(BIN)/python -m ampd.simulator.experiments.paper $(ARGS)

paper-quick: setup ## a first look at them: one model on one GPU, short runs (minutes)
	@exec $(BIN)/python -m ampd.simulator.experiments.paper --quick $(ARGS)

clean: ## remove .venv, caches and build output (the demo model's cache stays)
	rm -rf .venv build results .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
