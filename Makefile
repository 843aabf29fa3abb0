# make demo    the flights example on an HTCondor pool of this machine's own
# make test    every test, with a real pool
# make check   format, lint, types, fast tests: green at every commit
# make lab     a manager, nodes and a stand-in for AWS on this machine, and a shell on the manager
# make bench   what the parts cost, as ratios within one run
# make bench-kernels    MulC as in 2014, and each fused kernel against torch.compile; best on a GPU
# make bench-train      the reference trainer against plainer ways and the hardware's limits
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FLIGHTS := workflows/examples/flights

.PHONY: demo test check format lab bench bench-kernels bench-train clean
.DEFAULT_GOAL := check

demo: $(VENV)/ready
	$(BIN)/trialfleet pool up
	$(BIN)/python $(FLIGHTS)/prepare.py
	$(BIN)/trialfleet run $(FLIGHTS)/study.yaml

test: $(VENV)/ready
	$(BIN)/pytest -n 4 --dist loadfile

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src tests
	$(BIN)/pytest -q -n 2 tests/unit -m "not browser and not postgres and not slow"

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lab: $(VENV)/ready
	$(BIN)/python -m tests.fleet.lab

bench: $(VENV)/ready
	$(BIN)/python -m tests.bench

bench-kernels: $(VENV)/ready
	$(BIN)/python -m trialfleet.nodes.kernels bench

bench-train: $(VENV)/ready
	$(BIN)/python -m tests.bench_train

# torch first and by its exact version: a range would pull gigabytes of CUDA onto a manager.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[flights,postgresql,test]'
	touch $@

clean:
	rm -rf build dist *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
