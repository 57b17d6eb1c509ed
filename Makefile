# Everything runs inside .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Compiled programs are kept between runs of the tests.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache

.DEFAULT_GOAL := help
.PHONY: help demo test check format docs bench-filter bench-planning bench-path bench-laws bench-audit bench-gpu audit-laws audit-support audit-modes audit-planning pages soak maniskill clean sawyer

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## robot logs to a page, then a puck to its law; about two minutes; open demo/index.html
	$(BIN)/vhydro demo --out demo

test: $(READY) ## the whole test suite
	$(BIN)/python -m pytest -n 2

check: $(READY) ## lint, format, types, import layers and documentation without warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

docs: $(READY) ## the documentation site, in build/docs; ten seconds
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

format: $(READY) ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv-particles/.ready: ## particles needs numpy < 2: an environment of its own
	$(PYTHON) -m venv .venv-particles
	.venv-particles/bin/python -m pip install --quiet --disable-pip-version-check 'particles==0.4' 'numpy<2'
	@touch $@

bench-filter: $(READY) .venv-particles/.ready ## speed of the filter beside cuthbert and particles
	$(BIN)/python benchmarks/filter.py

.venv-mppi/.ready: ## torch in an environment of its own
	$(PYTHON) -m venv .venv-mppi
	.venv-mppi/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0' 'pytorch_mppi==0.9.1'
	@touch $@

bench-planning: $(READY) .venv-mppi/.ready ## speed of one replan beside pytorch_mppi
	$(BIN)/python benchmarks/planning.py

bench-path: $(READY) ## evidence and learning against truth, over whole logs; hours on two cores (--part gaps, learning, efficiency)
	cd benchmarks && ../$(BIN)/python path.py $(PATH_OPTIONS)

bench-laws: $(READY) ## seconds of one law fit beside PySINDy's STLSQ
	$(BIN)/python benchmarks/laws.py

bench-audit: $(READY) ## seconds of one cell group of the support audit; DATA=folder for logs of your own
	$(BIN)/python benchmarks/audit.py $(if $(DATA),--data $(DATA))

bench-gpu: $(READY) ## kernels beside the scan and cuthbert, on a GPU; under eight minutes
	$(BIN)/python benchmarks/gpu.py

node_modules/axe-core: ## what checks the pages for readers who do not see them
	npm install --no-save --no-audit --no-fund --silent axe-core

pages: $(READY) ## the pages of the committed audits: results/index.html, and results/*/index.html
	$(BIN)/vhydro audit page

audit-modes: $(READY) ## the modes audit on the recorded logs in DATA; results in results/modes, resumable
	$(BIN)/vhydro audit modes --data $(or $(DATA),$(error say where the logs are: make audit-modes DATA=folder))

audit-support: $(READY) ## the support audit in full on the recorded logs in DATA; results in results/support, resumable
	$(BIN)/vhydro audit support --data $(or $(DATA),$(error say where the logs are: make audit-support DATA=folder))

audit-laws: $(READY) ## the laws audit in full; results in results/laws, resumable
	$(BIN)/vhydro audit laws

audit-planning: $(READY) ## the planning audit on known systems; results in results/planning, resumable
	$(BIN)/vhydro audit planning

soak: $(READY) ## one million stream steps with 90 % of the channels hidden
	$(BIN)/python benchmarks/soak.py

# Its motion planner (mplib) needs numpy < 2: an environment of its own. torch goes first, so that its version is ours.
# With pip pointed at a CPU build of torch, several GB of CUDA packages are spared.
.venv-maniskill/.ready:
	$(PYTHON) -m venv .venv-maniskill
	.venv-maniskill/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	.venv-maniskill/bin/python -m pip install --quiet --disable-pip-version-check \
		'mani_skill==3.0.1' 'sapien==3.0.3' 'mplib==0.1.1' 'numpy==1.26.4' 'opencv-python<4.12'
	@touch $@

maniskill: .venv-maniskill/.ready ## the simulator that `vhydro collect maniskill` runs (2 GB)

# robosuite goes in without its requirements: one of them pins numpy < 2, and the controllers used here need none of it.
.venv-sawyer/.ready:
	$(PYTHON) -m venv .venv-sawyer
	.venv-sawyer/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[sawyer]'
	.venv-sawyer/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'robosuite==1.5.2' 'robosuite_models==1.0.0'
	@touch $@

sawyer: .venv-sawyer/.ready ## the simulator that `vhydro collect sawyer` runs

clean: ## remove environments and caches
	rm -rf $(VENV) .venv-particles .venv-mppi .venv-maniskill .venv-sawyer .jax_cache node_modules build dist
