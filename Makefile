# What a fresh clone needs: Python 3.11 or newer, and make. Everything is installed into .venv, once.
#
#   make demo    watch a tiny agent learn from a judge, on this machine
#   make test    all checks: lint, types, tests
#   make lint    lint and types only
#   make clean   remove .venv and what tools left; runs/ stays

PYTHON ?= python3

BIN := .venv/bin
TRAIN := .venv/.installed-train
DEV := .venv/.installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint clean

demo: $(TRAIN)
	@$(BIN)/gavel demo

test: lint
	@$(BIN)/python -m pytest

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

# The development tools include all that training needs.
$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing Gavel, PyTorch and the development tools into .venv (once; it takes a few minutes) …"
	@$(PIP) --editable '.[dev]'
	@touch $(DEV) $(TRAIN)

$(TRAIN): pyproject.toml | $(BIN)/python
	@echo "Installing Gavel and PyTorch into .venv (once; it takes a few minutes) …"
	@$(PIP) --editable '.[train]'
	@touch $(TRAIN)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Gavel needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
