# Weiss. `make` alone lists the targets.
PYTHON ?= python3
# The versions to install: constraints.txt (the newest, tested) or constraints-oldest.txt.
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
.DEFAULT_GOAL := help

.PHONY: help setup demo test test-slow test-gpu test-data test-ray test-browser test-hostile check format bench docs dist clean

help: ## list these targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One install, so that the pinned versions hold for everything.
.venv/.installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Weiss needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) -e ".[dev]"
	@touch $@

setup: .venv/.installed ## create .venv and install Weiss with everything that the tests need

demo: setup ## train on glyphs, search characters that training never saw, write a page (two to three minutes)
	$(BIN)/python examples/demo.py --out demo

# As many tests at a time as there are cores, each with one thread: they compute too little for more.
test: setup ## run the tests (at most five minutes on two cores)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n logical --maxprocesses 4 --dist worksteal

test-slow: setup ## run the tests that take long or need much memory: examples, benchmarks, long documents, dist
	$(BIN)/pytest -q -m slow

test-gpu: setup ## run the tests that need a CUDA device
	$(BIN)/pytest -q -m gpu

test-data: setup ## run the tests on real data: CUB=folder of CUB_200_2011 WEIGHTS=folder of weights
	$(BIN)/pytest -q -m data --cub="$(CUB)" --weights="$(WEIGHTS)" tests

test-ray: setup ## run the tests that start a Ray cluster on this machine and kill parts of it (ten minutes)
	$(PIP) -e ".[ray]"
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m ray

test-browser: setup ## run the tests in a browser (Debian: apt install chromium)
	$(PIP) -e ".[browser]"
	$(BIN)/pytest -q -m "browser and not slow"

test-hostile: setup ## damage files, kill processes, abuse a server, fuzz losses (at most 20 minutes on two cores)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m hostile --show-capture=no tests/hostile

check: setup ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## measure losses, evaluation, decoding, the catalogue and executors against rivals; writes benchmarks/results
	$(BIN)/python benchmarks/bench_multi_similarity.py
	$(BIN)/python benchmarks/bench_classes.py
	$(BIN)/python benchmarks/bench_retrieval.py --task inshop --rivals plain,faiss,pml --repeats 5
	$(BIN)/python benchmarks/bench_retrieval.py --task sop --rivals plain,faiss,pml
	$(BIN)/python benchmarks/bench_decoding.py
	$(BIN)/python benchmarks/bench_index.py --rounds 7
	$(BIN)/python benchmarks/bench_catalogue.py
	$(BIN)/python benchmarks/bench_waiting.py
	$(BIN)/python benchmarks/bench_serve.py
	$(BIN)/python benchmarks/bench_executors.py --nap 12
	$(BIN)/python benchmarks/bench_cluster.py

docs: setup ## build the documentation site into site/, from these files alone
	$(PIP) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "look at site/index.html (searching needs a server: $(BIN)/mkdocs serve)"

dist: setup ## build the source archive and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist

clean: ## remove the environment and every cache
	rm -rf .venv demo dist runs site .pytest_cache .mypy_cache .ruff_cache
