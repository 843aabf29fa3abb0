# make install the environment alone, .venv, in which trialfleet is: what the other ways begin with
# make demo    the flights example on an HTCondor pool of this machine's own; once: then shows it again
#              DEMO=another   a new run of it
# make test    the tests, with a real pool: a quarter of an hour on two cores
# make test-all    with every kill of every matrix, every machine of the lab, every compiler as well
# make check   format, lint, types, fast tests: green at every commit
# make fuzz    new examples for the properties, and generated studies and command lines: MINUTES=60
# make lint    format, lint, types alone
# make docs    the documentation as a site, build/site/index.html; docs-reference: what of it is made from code
# make release builds wheel and sdist into dist/ and tries the wheel alone; TAG=1 tags the commit, DEMO_TOO=1
#              also runs the demo's study with it, OFFLINE=1 borrows the packages of .venv
# make lock    pins every package anew in requirements*.lock; LOCK=--upgrade takes the newest versions
# make vendor  fetches the JavaScript libraries of report and page anew, as their vendor folders pin them
# make optunahub  writes RegionSampler as a package for OptunaHub into build/optunahub
# make lab     a manager, nodes and a stand-in for AWS on this machine, and a shell on the manager
#              REAL=1, as root: nodes boot Debian with systemd, cloud-init and apt (needs mmdebstrap)
# make storm   kills 500 processes of a pool and proves that no run is stuck, no trial lost or doubled
# make bench   what the parts cost, as ratios within one run
# make bench-lanes  a thousand jobs at once on one access point; half an hour, ARGS="--jobs 200 --minutes 2" for less
# make bench-optimizer  how few trials the sampler needs, beside Optuna's; two hours of a core, ARGS="--seeds 3" for less
# make bench-transfer   how many trials former results save; half an hour, ARGS="--seeds 2" for less
# make bench-stopping   what early stopping saves and costs, on replayed curves; ten minutes, ARGS="--seeds 3" for less
# make bench-stopped-tuning  the same while our optimiser chooses, on regions of flights; half an hour, ARGS="--regions 6" for less
# make bench-replay     optimisers on real trainings of 36 regions, from a table; half an hour, ARGS="--seeds 5" for less
# make bench-suites     optimisers on COCO's functions and on what is tuned, SMAC3 and BoTorch among them; hours, ARGS="--instances 1" for less
# make replay-table     trains more settings for that table: SETTINGS=300; goes on where it was killed
# make bench-peers      the same tuning by trialfleet, Ray Tune, Celery and Optuna, with kills; an hour on two cores
# make bench-ranks      what several ranks send, and what that does to the model; twenty minutes, ARGS="--seeds 1" for less
# make bench-ranks-memory  what a rank's model takes of memory, whole and shared out; two minutes
# make bench-host-rows  what embeddings in main memory cost, beside the whole table in the optimiser's hands; a minute
# make bench-ranks-scaling  what the model of compute and link predicts, beside what ranks take; three minutes
# make bench-views      what the commands cost that show a run of 300 regions x 100 trials; ten minutes, ARGS=3x20 for less
# make bench-fleet      what a step of the autoscaler takes with 1,000 nodes and 20,000 jobs; five minutes
# make bench-spot       a year of spot nodes: trials per dollar by pools that learn, beside the cheapest first; ten minutes
# make bench-boot-storm what 1,000 simulated nodes that join within a minute take of the manager; ten minutes
# make bench-kernels    MulC as in 2014, and each fused kernel against torch.compile; best on a GPU
# make bench-train      the reference trainer against plainer ways and the hardware's limits
# make bench-first-step  how long a trial waits for its first steps, beside torch.compile; ten minutes, ARGS="--repeats 1" for less
# make bench-tables     the reference trainer's errors beside LightGBM's and scikit-learn's; ten minutes, ARGS="--settings 1 --seeds 1" for less
# make gpu          everything that a GPU has to show, within eight minutes, by $(PYTHON) as it is: no .venv
#              DRY=1   the same on a processor; OUT=FOLDER for gpu.json; without make: python3 -m tests.gpu
# make gpu-report FILE=build/gpu/gpu.json   writes tests/bench/BENCHMARKS.md from that
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MINUTES ?= 10
SETTINGS ?= 300
FLIGHTS := workflows/examples/flights
VENDOR := templates/report/vendor
# The slow files come first; in xdist's own order they come last, as they have few tests.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
DEMO ?= demo
# Where this is set, each process that the tests start compiles all that it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-all fuzz check lint format lock vendor optunahub lab storm gpu gpu-report docs docs-reference release clean \
	bench bench-lanes bench-optimizer bench-transfer bench-stopping bench-stopped-tuning bench-replay bench-suites replay-table bench-peers bench-views bench-fleet bench-spot bench-boot-storm bench-ranks bench-ranks-memory bench-host-rows bench-ranks-scaling bench-kernels bench-train bench-first-step bench-tables
.DEFAULT_GOAL := check

# An environment for those who use it; with all that tests need, where that is there already.
install: $(if $(wildcard $(VENV)/ready),$(VENV)/ready,$(VENV)/run)
	@echo "trialfleet is in $(VENV); to have it at hand: . $(BIN)/activate"

demo:
	@PYTHONPATH=src $(PYTHON) -m trialfleet.workflows.run_place runs/flights/$(DEMO)
	$(MAKE) --no-print-directory install
	$(BIN)/trialfleet pool up
	$(BIN)/python $(FLIGHTS)/prepare.py
	$(BIN)/trialfleet run $(FLIGHTS)/study.yaml --run-id $(DEMO)
	@echo
	@echo "next, a study of your own (README.md has more):"
	@echo "  . $(BIN)/activate"
	@echo "  trialfleet init first"
	@echo "  trialfleet run first/study.yaml"

test: $(VENV)/ready
	$(BIN)/pytest $(PARALLEL) -m "not thorough"

test-all: $(VENV)/ready
	$(BIN)/pytest $(PARALLEL)

fuzz: $(VENV)/ready
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

check: lint
	$(BIN)/pytest -q -n 3 --dist loadfile tests/unit -m "not browser and not postgres and not slow and not thorough" \
		--durations 5 --durations-min 0.5

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src tests

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: docs-reference
	$(BIN)/zensical build --strict --clean

docs-reference: $(VENV)/ready
	$(BIN)/python -m tests.docs

release: $(VENV)/ready
	$(BIN)/python infra/release.py $(if $(TAG),--tag) $(if $(DEMO_TOO),--demo) $(if $(OFFLINE),--borrow)

optunahub: $(VENV)/ready
	$(BIN)/python infra/optunahub_package.py

lab: $(VENV)/ready
	$(BIN)/python -m tests.fleet.lab $(if $(REAL),--real)

storm: $(VENV)/ready
	$(BIN)/python -m tests.storm

bench: $(VENV)/ready
	$(BIN)/python -m tests.bench

bench-lanes: $(VENV)/ready
	$(BIN)/python -m tests.bench.lanes $(ARGS)

bench-optimizer: $(VENV)/ready
	$(BIN)/python -m tests.bench.optimizer $(ARGS)

bench-transfer: $(VENV)/ready
	$(BIN)/python -m tests.bench.optimizer.transfer $(ARGS)

bench-stopping: $(VENV)/ready
	$(BIN)/python -m tests.bench.optimizer.stopping $(ARGS)

bench-stopped-tuning: $(VENV)/ready
	$(BIN)/python -m tests.bench.optimizer.stopped_tuning $(ARGS)

bench-replay: $(VENV)/ready
	$(BIN)/python -m tests.bench.optimizer.replay $(ARGS)

bench-suites: $(VENV)/ready
	$(BIN)/python -m tests.bench.optimizer.suites $(ARGS)

replay-table: $(VENV)/ready
	OMP_NUM_THREADS=1 nice $(BIN)/python -m tests.bench.optimizer.flights_trainings --settings $(SETTINGS)

bench-views: $(VENV)/ready
	$(BIN)/python -m tests.bench.views $(ARGS)

bench-fleet: $(VENV)/ready
	$(BIN)/python -m tests.bench.fleet $(ARGS)

bench-spot: $(VENV)/ready
	$(BIN)/python -m tests.bench.fleet.spot_replay $(ARGS)

bench-boot-storm: $(VENV)/ready
	$(BIN)/python -m tests.bench.fleet.boot_storm $(ARGS)

bench-ranks: $(VENV)/ready
	$(BIN)/python -m tests.bench.ranks $(ARGS)

bench-ranks-memory: $(VENV)/ready
	$(BIN)/python -m tests.bench.ranks.memory $(ARGS)

bench-host-rows: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.ranks.host_rows $(ARGS)

bench-ranks-scaling: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.ranks.scaling $(ARGS)

bench-peers: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable .[bench-peers,flights]
	$(BIN)/python -m tests.bench.peers $(ARGS)

bench-kernels: $(VENV)/ready
	$(BIN)/python -m tests.bench.kernels

bench-train: $(VENV)/ready
	$(BIN)/python -m tests.bench.train

bench-first-step: $(VENV)/ready
	$(BIN)/python -m tests.bench.train.first_step $(ARGS)

bench-tables: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench.tables $(ARGS)

gpu:
	$(PYTHON) -m tests.gpu $(if $(DRY),--dry) --out $(or $(OUT),build/gpu)/gpu.json

gpu-report: $(VENV)/ready
	$(BIN)/python -m tests.gpu.report $(FILE)

# uv loads what the locks pin, from PyPI unless UV_DEFAULT_INDEX names another index. The locks have a hash
# for every file but torch's: which build of it is right depends on the machine. Nothing that is in the
# environment beside (an example's framework, say) is removed.
INSTALLERS := constraints.txt requirements-uv.lock infra/install_torch.py
UV := $(BIN)/uv pip install --python $(BIN)/python
define INSTALL
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trialfleet needs Python 3.11 or newer; \
	$(PYTHON) is " + sys.version.split()[0] + ": name another, as in make PYTHON=python3.12 install")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements-uv.lock
	$(UV) --require-hashes --requirement $<
	$(BIN)/python infra/install_torch.py constraints.txt
	$(UV) --quiet --no-deps --no-build-isolation --editable .
	touch $@
endef

$(VENV)/run: requirements-run.lock pyproject.toml $(INSTALLERS)
	$(INSTALL)

$(VENV)/ready: requirements.lock pyproject.toml $(INSTALLERS)
	$(INSTALL)

# For every platform and every Python that pyproject.toml allows; a version stays as long as it may.
# requirements-run.lock has the part of requirements.lock that a user needs.
COMPILE := build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--annotation-style line --custom-compile-command "make lock"
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --require-hashes --requirement requirements-uv.lock
	$(COMPILE) $(LOCK) --group uv --output-file requirements-uv.lock
	$(COMPILE) $(LOCK) pyproject.toml \
		--extra docs --extra flights --extra postgresql --extra test --group lock --excludes constraints.txt \
		--output-file requirements.lock
	$(COMPILE) pyproject.toml --extra flights --group lock --excludes constraints.txt \
		--constraint requirements.lock --output-file requirements-run.lock

# A newer version: change it and its archive's SHA-256 in packages.sha256. The page holds each
# package's licence; those that have no script of their own are part of the two that have one.
vendor:
	rm -rf build/vendor && mkdir -p build/vendor
	set -e; while read -r hash package; do \
		archive=build/vendor/$$(npm pack --silent --pack-destination build/vendor "$$package"); \
		echo "$$hash  $$archive" | sha256sum --check --quiet; \
		name=$${package##*/}; name=$${name%@*}; \
		mv "$$archive" build/vendor/$$name.tgz; \
		tar -xOf build/vendor/$$name.tgz package/LICENSE > $(VENDOR)/$$name.LICENSE; \
	done < $(VENDOR)/packages.sha256
	tar -xOf build/vendor/d3.tgz package/dist/d3.min.js > $(VENDOR)/d3.min.js
	tar -xOf build/vendor/plot.tgz package/dist/plot.umd.min.js > $(VENDOR)/plot.umd.min.js

clean:
	rm -rf build dist .cache *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
