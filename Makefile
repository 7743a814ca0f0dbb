# Every target makes what it needs by itself; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint typecheck compile compile-check docs docs-check images bench-quality bench-train bench-train-short lock clean

BIN := .venv/bin
READY := .venv/ready
TORCH := .cache/bench/torch/ready
PYTEST_ARGS ?=
export PYTHONUNBUFFERED := 1

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## Make .venv with Python 3.11 and the locked packages (other targets do it when needed)

$(READY): requirements.lock pyproject.toml .dev/setup
	@echo "setting up .venv (a few minutes the first time)"
	@.dev/setup
	@touch $@

demo: $(READY)  ## Train, judge and serve on MovieLens-100k: two whole runs, then a prediction by curl
	@examples/movielens/demo

test: $(READY)  ## Run the tests (a part: make test PYTEST_ARGS="-m 'not slow' tests/pipelines")
	@$(BIN)/pytest $(PYTEST_ARGS)
	@echo "left out here: the images (make images), quality over three seeds (make bench-quality), speed (make bench-train)"

lint: $(READY)  ## Check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

typecheck: $(READY)  ## Check types
	@$(BIN)/mypy components pipelines

compile: $(READY)  ## Write the pipeline and its components for Kubeflow into pipelines/compiled/
	@$(BIN)/paraserve compile --components --out pipelines/compiled/train_to_serve.yaml

compile-check: $(READY)  ## Check that pipelines/compiled/ is current
	@$(BIN)/pytest -q tests/pipelines/test_compile.py

docs: $(READY)  ## Write docs/parameters.md from the code
	@$(BIN)/python docs/generate.py

docs-check: $(READY)  ## Check that docs/parameters.md is current
	@$(BIN)/pytest -q tests/test_docs.py

images: $(READY)  ## Build the container images and try them (podman; installed by apt for root)
	@images/build paraserve paraserve-tensorflow

bench-quality: $(READY)  ## Compare the demo model's quality with published figures, over three seeds
	@$(BIN)/python benchmarks/quality.py

bench-train: $(READY) $(TORCH)  ## Train against tf_keras and PyTorch on the same data and net: speed, bytes, quality (an hour)
	@$(BIN)/python -m benchmarks.train

bench-train-short: $(READY)  ## Show that the train benchmark runs, on tiny data; judges nothing
	@$(BIN)/python -m benchmarks.train --short

$(TORCH): pyproject.toml benchmarks/train/install-pytorch | $(READY)
	@echo "installing PyTorch into .cache/bench (a minute)"
	@benchmarks/train/install-pytorch
	@touch $@

lock: $(READY)  ## Resolve the dependencies anew into the lock files
	@.dev/lock

clean:  ## Remove what the targets made, .venv included; an endpoint of the demo is stopped first
	@if [ ! -e run/.paraserve/demo ]; then exit; fi; if [ -x $(BIN)/paraserve ]; then $(BIN)/paraserve serve stop; fi; rm -rf run
	@if [ -e run ]; then echo "run/ stays: it is not the demo's"; fi
	@rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
