"""Benchmarks of trialfleet's parts: `make bench`. Figures are ratios, since machines are noisy.

Each part is compared with a plain way to do the same on the same machine, within minutes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from tests.bench.lanes.service import begin_log, tell
from tests.bench.next_trial import next_trial
from tests.bench.printing import line, seconds
from tests.bench.turnaround import bench_lane, bench_turnaround, matches, median, one_slot_pool
from trialfleet import Run, Study, plan
from trialfleet.files import sync, sync_tree
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import Complete, RegionSettings
from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import study_name

TRAINER = """\
#!/bin/sh
nap=$(sed -n 's/.*"nap": *\\([0-9.]*\\).*/\\1/p' trial.json 2>/dev/null)
sleep "${nap:-0.2}"
[ -d model ] && echo 1 > model/weights
echo '{"schema": 1, "status": "complete", "metrics": {"loss": 1.5}}' > result.json
"""


def main() -> None:
    """Measure and print."""
    base = platformdirs.user_cache_path("trialfleet") / "bench"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    (base / "go.sh").write_text(TRAINER)
    try:
        bench_plan(base)
        bench_status(base)
        bench_next_trial(base)
        with one_slot_pool(base) as pool:
            bench_turnaround(base, make_study)
            bench_lane(base, pool, make_study)
            bench_ask(base)
            bench_answer(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def make_study(
    base: Path,
    regions: int,
    trials: int,
    lanes: int,
    *,
    nap: float = 0.2,
    per_job: int | None = None,
) -> Study:
    """Return a study whose trials take `nap` seconds; by default a lane is one job."""
    space = {f"x{i}": {"type": "float", "low": 0.0, "high": 1.0} for i in range(6)}
    return Study.model_validate(
        {
            "name": "bench",
            "regions": [f"R{i:02}" for i in range(regions)],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {**space, "nap": nap},
            "budget": {
                "trials": trials,
                "lanes": lanes,
                "startup_trials": min(5, trials),
                "trials_per_job": per_job or "all",
            },
            "trainer": {"command": ["sh", "go.sh"], "files": ["go.sh"]},
            "resources": {"memory": "64MB", "disk": "64MB"},
            "accelerator": "cpu",
        }
    ).resolve(base)


# -- plan ------------------------------------------------------------------------------------------


def bench_plan(base: Path) -> None:
    """Time the plan of 41 regions x 100 trials, against a copy of the files that it writes."""
    study = make_study(base, regions=41, trials=100, lanes=4)
    places = (base / f"plan{i}" for i in range(100))
    ours = seconds(lambda: plan(study, run="bench", out=next(places)), 3)
    copies = (base / f"copy{i}" for i in range(100))
    plain = seconds(lambda: shutil.copytree(base / "plan0", next(copies)), 3)
    line("plan 41 x 100", ours, plain, "s", "copying the folder")
    fresh = (shutil.copytree(base / "plan0", base / f"sync{i}") for i in range(6))
    ours = median([_timed(sync_tree, next(fresh)) for _ in range(3)])
    plain = median([_timed(_sync_each, next(fresh)) for _ in range(3)])
    line(
        "making it survive a power failure", ours * 1e3, plain * 1e3, "ms", "an fsync for each file"
    )


def _timed(work: Callable[[Path], None], folder: Path) -> float:
    begun = time.perf_counter()
    work(folder)
    return time.perf_counter() - begun


def _sync_each(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        sync(path)


# -- the next trial --------------------------------------------------------------------------------


def bench_next_trial(base: Path) -> None:
    """Time the start of a job's next trial, in the same trainer process and in a new one."""
    ours = next_trial(base / "same", stays=True)
    plain = next_trial(base / "new", stays=False)
    line("first step of a job's next trial", ours * 1e3, plain * 1e3, "ms", "a new process")


# -- status ----------------------------------------------------------------------------------------


def bench_status(base: Path) -> None:
    """Time `trialfleet status` of three regions with 20 trials each, against Python's own start."""
    study = make_study(base, regions=3, trials=20, lanes=4)
    run = plan(study, run="status", out=base / "status")
    finish_trials(run, 20)
    program = Path(sys.executable).with_name("trialfleet")
    command = [str(program), "status", str(run.folder)]
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL}
    ours = seconds(lambda: subprocess.run(command, **quiet), 20)
    plain = seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], **quiet), 20)
    line("status of 3 x 20 trials", ours, plain, "s", "python -c pass")


def finish_trials(run: Run, number: int) -> None:
    """Store `number` complete trials in each region's study, as the optimiser's service does."""
    storage = open_storage(sqlite_url(RunFolder(run.folder).database))
    for region in run.study.region_table:
        settings = RegionSettings(
            metric="loss",
            direction="minimize",
            region=region,
            seed=0,
            trials=number,
            startup_trials=number,
            max_failures=0,
            hours=None,
        )
        name = study_name(run.study, run.run_id, region)
        study = RegionStudy(storage, name, run.study.search_space, settings)
        for i in range(number):
            study.ask(f"n{i}")
            result = Complete(metrics={"loss": i / 10}, seconds=1.0, device=None)
            study.tell(f"n{i}", result, attempts=1)
    close_storage(storage)


# -- ask ---


FRESH = """\
import sys, optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.load_study(study_name=sys.argv[2], storage=sys.argv[1],
                          sampler=optuna.samplers.GPSampler(seed=1, n_startup_trials=5))
names = [f"x{i}" for i in range(6)]
study.ask({n: optuna.distributions.FloatDistribution(0.0, 1.0) for n in names})
"""


def bench_ask(base: Path) -> None:
    """Time a PRE script's request to a running service and to a new one, with 40 trials stored."""
    run = plan(make_study(base, 1, 80, lanes=1, per_job=1), run="ask", out=base / "ask")
    folder = RunFolder(run.folder)
    nodes = sorted(p.name for p in folder.region("R00").trials.iterdir())
    for node in nodes[:40]:
        call(folder, "ask", "R00", node)
        trial = folder.region("R00").trial(node)
        params = json.loads(trial.trial_json.read_text())["params"]
        loss = sum((value - 0.3) ** 2 for value in params.values())
        result = {"schema": 1, "status": "complete", "metrics": {"loss": loss}}
        trial.result.write_text(json.dumps(result))
        call(folder, "tell", "R00", node, "0", "0", "0", "0")
    asked = iter(nodes[40:])
    at_once = seconds(lambda: call(folder, "ask", "R00", next(asked)))

    def after_a_second() -> None:
        time.sleep(1.0)  # the time that DAGMan needs anyway between a tell and the next ask
        call(folder, "ask", "R00", next(asked))

    ahead = seconds(after_a_second) - 1.0
    pending = next(asked)
    call(folder, "ask", "R00", pending)
    repeat = seconds(lambda: call(folder, "ask", "R00", pending), 20)
    url, name = f"sqlite:///{folder.database}", "bench/ask/R00"
    fresh = seconds(
        lambda: subprocess.run([sys.executable, "-W", "ignore", "-c", FRESH, url, name], check=True)
    )
    line("ask, as a PRE script sees it", at_once, fresh, "s", "a fresh process")
    line("ask, a second after the last result", ahead, fresh, "s", "a fresh process")
    bare = seconds(lambda: subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True), 20)
    line("PRE script that is answered from memory", repeat, bare, "s", "a bare Python")
    starts = []
    for _ in range(5):
        end_services(run)
        begun = time.perf_counter()
        call(folder, "ask", "R00", pending)
        starts.append(time.perf_counter() - begun)
    line("the same, where no service runs yet", median(starts), bare, "s", "a bare Python")
    end_services(run)


def bench_answer(base: Path) -> None:
    """Time from a message of a lane's agent until the service has written the agent's order."""
    run = plan(make_study(base, 1, 80, lanes=1), run="answer", out=base / "answer")
    folder = RunFolder(run.folder)
    (node,) = folder.region("R00").trials.iterdir()
    call(folder, "ask", "R00", node.name)
    place = folder.region("R00").trial(node.name)
    begin_log(place)
    spans = []
    for turn in range(1, 41):
        tell(place, turn)
        begun = time.perf_counter()
        while json.loads(place.order.read_bytes())["turn"] != turn:
            time.sleep(0.001)
        spans.append(time.perf_counter() - begun)
    bare = seconds(lambda: subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True), 20)
    line("lane: trial told -> next order, design", median(spans[1:5]), bare, "s", "a bare Python")
    line("lane: trial told -> next order, model", median(spans[20:]), bare, "s", "a bare Python")
    end_services(run)


def end_services(run: Run) -> None:
    """End the optimiser's service of a run."""
    services = [each for each in psutil.process_iter() if matches(each, run, "programs serve")]
    for process in services:
        process.terminate()
    psutil.wait_procs(services, timeout=10)


def call(folder: RunFolder, *words: str) -> None:
    """Call the optimiser's client as the script of a DAG node does."""
    subprocess.run([folder.client, *words], check=True, capture_output=True)


if __name__ == "__main__":
    main()
