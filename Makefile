# make install makes .venv with trialfleet in it: used by all other targets
# make demo    runs the flights example on an HTCondor pool on this machine; the second time it shows the result
#              DEMO=another   a new run of it
# make test    runs the tests, with a real pool: half an hour on two cores
# make test-all    also every kill of each crash matrix, every machine of the lab, every compiler
# make check   format, lint, types, fast tests: must pass at every commit
# make fuzz    new examples for the properties, and generated studies and command lines: MINUTES=60
# make lint    format, lint and types only
# make docs    builds the documentation as a site, build/site/index.html; docs-reference: its parts made from code
# make pictures    runs the demo, and takes the README's pictures of its page and report (needs chromium-driver)
# make release builds wheel and sdist into dist/ and tries the wheel in a new environment; TAG=1 tags the commit,
#              DEMO_TOO=1 also runs the demo's study with it, OFFLINE=1 uses the packages of .venv
# make lock    pins every package again in requirements*.lock; LOCK=--upgrade takes the newest versions
# make vendor  fetches the JavaScript libraries of report and page again, as their vendor folders pin them
# make optunahub  writes RegionSampler as a package for OptunaHub into build/optunahub
# make lab     starts a manager, nodes and a stand-in for AWS on this machine, and a shell on the manager
#              REAL=1, as root: nodes boot Debian with systemd, cloud-init and apt (needs mmdebstrap)
# make storm   kills 500 processes of a pool and checks that no run is stuck, no trial lost or duplicated
# make bench   the cost of the parts, as ratios within one run
# make bench-lanes  a thousand jobs at once on one access point; half an hour, ARGS="--jobs 200 --minutes 2" for less
# make bench-optimizer  the number of trials that the sampler needs, compared with Optuna's; two hours of a core, ARGS="--seeds 3" for less
# make bench-transfer   the number of trials that previous results save; half an hour, ARGS="--seeds 2" for less
# make bench-stopping   the savings and costs of early stopping, on replayed curves; ten minutes, ARGS="--seeds 3" for less
# make bench-stopped-tuning  the same while the optimiser chooses, on regions of flights; half an hour, ARGS="--regions 6" for less
# make bench-replay     optimisers on real trainings of 36 regions, from a table; half an hour, ARGS="--seeds 5" for less
# make bench-asks       the time and memory of a proposal after 50 to 10,000 trials; a minute
# make bench-suites     optimisers, SMAC3 and BoTorch among them, on COCO's functions and on real tuning tasks; hours, ARGS="--instances 1" for less
# make replay-table     trains more settings for that table: SETTINGS=300; continues after a kill
# make bench-peers      the same tuning by trialfleet, Ray Tune, Celery and Optuna, with kills; an hour on two cores
# make bench-ranks      the traffic of several ranks, and its effect on the model; twenty minutes, ARGS="--seeds 1" for less
# make bench-ranks-memory  the memory of a rank's model, whole and sharded; two minutes
# make bench-host-rows  the cost of embeddings in main memory, compared with the whole table in the optimiser; a minute
# make bench-ranks-scaling  times that the model of compute and link predicts, and measured times; three minutes
# make bench-views      the cost of commands that show a run of 300 regions x 100 trials; ten minutes, ARGS=3x20 for less
# make bench-fleet      the time of a step of the autoscaler with 1,000 nodes and 20,000 jobs; five minutes
# make bench-spot       a year of spot nodes: trials per dollar by learned pools, and by the cheapest pools first; ten minutes
# make bench-boot-storm the manager's load while 1,000 simulated nodes join within a minute; ten minutes
# make bench-kernels    MulC as in 2014, and each fused kernel against torch.compile; best on a GPU
# make bench-train      the reference trainer, simpler trainers and the hardware's limits
# make bench-first-step  the time to a trial's first steps, compared with torch.compile; ten minutes, ARGS="--repeats 1" for less
# make bench-tables     the reference trainer's errors, LightGBM's and scikit-learn's; ten minutes, ARGS="--settings 1 --seeds 1" for less
# make gpu          all tests and benchmarks of a GPU, within eight minutes, by $(PYTHON) itself: no .venv
#              DRY=1   the same on a processor; OUT=FOLDER for gpu.json; without make: python3 -m tests.gpu
# make gpu-report FILE=build/gpu/gpu.json   writes tests/bench/BENCHMARKS.md from that
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MINUTES ?= 10
SETTINGS ?= 300
FLIGHTS := workflows/examples/flights
VENDOR := templates/report/vendor
# The slow files come first; xdist would start them last, because they have few tests.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
DEMO ?= demo
# If this were set, each process that the tests start would compile all of its imports again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-all fuzz check lint format lock vendor optunahub lab storm gpu gpu-report docs docs-reference pictures release clean \
	bench bench-lanes bench-optimizer bench-transfer bench-stopping bench-stopped-tuning bench-replay bench-suites replay-table bench-peers bench-views bench-fleet bench-spot bench-boot-storm bench-ranks bench-ranks-memory bench-host-rows bench-ranks-scaling bench-kernels bench-train bench-first-step bench-tables
.DEFAULT_GOAL := check

# An environment for users; where .venv has the tests' packages already, it keeps them up to date.
install: $(if $(wildcard $(VENV)/ready),$(VENV)/ready,$(VENV)/run)
	@echo "trialfleet is in $(VENV); to activate it: . $(BIN)/activate"

demo:
	@PYTHONPATH=src $(PYTHON) -m trialfleet.workflows.run_path_check runs/flights/$(DEMO)
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

pictures: demo $(VENV)/ready
	$(BIN)/python -m tests.docs.pictures runs/flights/$(DEMO)

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

bench-asks: $(VENV)/ready
	$(BIN)/python -m tests.bench.optimizer.asks

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

# uv installs the locked packages, from PyPI unless UV_DEFAULT_INDEX names another index. The locks have a hash
# for every file but torch's: its build depends on the machine. Other packages in the environment (an
# example's framework, for instance) stay.
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

# For every platform and every Python that pyproject.toml allows; a version stays until pyproject.toml
# excludes it. requirements-run.lock has the part of requirements.lock that a user needs.
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

# For a newer version change it and its archive's SHA-256 in packages.sha256. The page holds each
# package's licence; packages without a script here are part of the two scripts.
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
