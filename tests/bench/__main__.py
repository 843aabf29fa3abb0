"""What the parts cost: `make bench`. Ratios within one run, since machines are noisy.

Every figure stands beside the plain way of doing the same on the same machine, minutes apart.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from trialfleet import Run, Study, plan
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import RegionSettings
from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.status.storage import study_name

TRIALS = 12
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
        with one_slot_pool(base):
            bench_turnaround(base)
            bench_ask(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def line(what: str, ours: float, plain: float, unit: str, plain_way: str) -> None:
    """Print one comparison."""
    print(f"{what:<52} {ours:8.3f} {unit}   {ours / plain:6.2f} x {plain_way} ({plain:.3f} {unit})")
    sys.stdout.flush()


def make_study(base: Path, regions: int, trials: int, lanes: int, nap: float = 0.2) -> Study:
    """A study whose trials take `nap` seconds."""
    space = {f"x{i}": {"type": "float", "low": 0.0, "high": 1.0} for i in range(6)}
    return Study.model_validate(
        {
            "name": "bench",
            "regions": [f"R{i:02}" for i in range(regions)],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {**space, "nap": nap},
            "budget": {"trials": trials, "lanes": lanes, "startup_trials": 5},
            "trainer": {"command": ["sh", "go.sh"], "files": ["go.sh"]},
            "resources": {"memory": "64MB", "disk": "64MB"},
            "accelerator": "cpu",
        }
    ).resolve(base)


def seconds(action: Callable[[], object], repeat: int = 5) -> float:
    """The median time of an action."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


# -- plan ------------------------------------------------------------------------------------------


def bench_plan(base: Path) -> None:
    """41 regions x 100 trials, against a copy of what is written."""
    study = make_study(base, regions=41, trials=100, lanes=4)
    places = (base / f"plan{i}" for i in range(100))
    ours = seconds(lambda: plan(study, run="bench", out=next(places)), 3)
    copies = (base / f"copy{i}" for i in range(100))
    plain = seconds(lambda: shutil.copytree(base / "plan0", next(copies)), 3)
    line("plan 41 x 100", ours, plain, "s", "copying the folder")


# -- status ----------------------------------------------------------------------------------------


def bench_status(base: Path) -> None:
    """`trialfleet status` of three regions with 20 trials each, against Python's own start."""
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
    """Put so many complete trials into each region's study, as the optimiser's service does."""
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
            study.tell_complete(
                f"n{i}", metrics={"loss": i / 10}, seconds=1.0, device=None, attempts=1
            )
    close_storage(storage)


# -- turnaround ----------------------------------------------------------------------------------


@contextmanager
def one_slot_pool(base: Path) -> Iterator[Pool]:
    """A pool that runs one job at a time."""
    pool = Pool(base / "pool", cpus=1)
    try:
        pool.up()
        use(pool.environment())
        yield pool
    finally:
        pool.down(grace=2)


def bench_turnaround(base: Path) -> None:
    """Short trials in one chain; longer ones in two chains that share a slot, one always queued."""
    plain = gaps(run_plain_chain(base))
    one = plan(make_study(base, 1, TRIALS, lanes=1), run="one", out=base / "one")
    memory = run_and_weigh(one)
    chain = gaps(logs_of(one))
    line("chain turnaround: trial ends -> next runs", median(chain), median(plain), "s", "bare DAG")
    two = plan(make_study(base, 1, TRIALS, lanes=2, nap=5.0), run="two", out=base / "two")
    run_and_weigh(two)
    line(
        "slot idle between queued trials (two lanes)",
        median(gaps(logs_of(two))),
        median(plain),
        "s",
        "bare DAG",
    )
    for name, megabytes in memory.items():
        line(f"memory of {name} (PSS)", megabytes, bare_python(), "MB", "a bare Python")


def median(values: list[float]) -> float:
    """The median of at least one value."""
    return statistics.median(values)


def run_and_weigh(run: Run) -> dict[str, float]:
    """Run to the end; the largest memory seen of the service and of DAGMan, in MB."""
    largest: dict[str, float] = {}
    run.submit()
    for _ in run.watch(every=1):
        for name, word in (("service", "node_scripts"), ("DAGMan, per region", "region.dag")):
            weights = [pss(p) for p in psutil.process_iter() if matches(p, run, word)]
            largest[name] = max([largest.get(name, 0.0), *weights])
    assert run.status().state == "done", run.status()
    return largest


def matches(process: psutil.Process, run: Run, word: str) -> bool:
    """Whether a process is the run's and of the kind that `word` stands in the command of."""
    try:
        command, folder = " ".join(process.cmdline()), process.cwd()
    except psutil.Error:
        return False
    own = str(run.folder)
    return word in command and (own in command or folder.startswith(own))


def pss(process: psutil.Process) -> float:
    """Memory of a process in MB, what it shares with others divided among them."""
    try:
        return float(process.memory_full_info().pss) / 1e6
    except psutil.Error:
        return 0.0


def bare_python() -> float:
    """Memory of an interpreter that does nothing, in MB."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE
    ) as bare:
        time.sleep(0.3)
        weight = pss(psutil.Process(bare.pid))
        bare.kill()
    return weight


def run_plain_chain(base: Path) -> list[Path]:
    """The same jobs as a DAG without scripts, each file written by hand."""
    folder = base / "plain"
    folder.mkdir()
    lines = []
    for i in range(TRIALS):
        (folder / f"{i}.sub").write_text(
            f"executable = {base}/go.sh\nlog = {i}.log\nrequest_memory = 64MB\n"
            "request_disk = 64MB\nshould_transfer_files = YES\n"
            "transfer_output_files = result.json\nqueue\n"
        )
        lines += [f"JOB n{i} {i}.sub"] + ([f"PARENT n{i - 1} CHILD n{i}"] if i else [])
    (base / "go.sh").chmod(0o755)
    (folder / "plain.dag").write_text("\n".join(lines) + "\n")
    subprocess.run(["condor_submit_dag", "plain.dag"], cwd=folder, check=True, capture_output=True)
    while not (folder / "plain.dag.metrics").exists():
        time.sleep(0.2)
    return [folder / f"{i}.log" for i in range(TRIALS)]


def logs_of(run: Run) -> list[Path]:
    """The event logs of a run's trials."""
    return sorted(run.folder.glob("regions/*/trials/*/log"))


def gaps(logs: list[Path]) -> list[float]:
    """Seconds between the end of a job and the start of the next, on one slot."""
    import htcondor2

    spans = []
    for log in logs:
        begin = None
        for event in htcondor2.JobEventLog(str(log)).events(stop_after=0):
            if event.type == htcondor2.JobEventType.EXECUTE:
                begin = moment(event)
            elif event.type == htcondor2.JobEventType.JOB_TERMINATED and begin is not None:
                spans.append((begin, moment(event)))
    spans.sort()
    return [later[0] - earlier[1] for earlier, later in pairwise(spans)]


def moment(event: Any) -> float:
    """The time of an event, to the millisecond."""
    return datetime.fromisoformat(event["EventTime"]).timestamp()


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
    """A PRE script's ask of a resident service against a fresh process's, 40 trials known."""
    run = plan(make_study(base, 1, 80, lanes=1), run="ask", out=base / "ask")
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
        time.sleep(1.0)  # what DAGMan needs anyway between a tell and the next ask
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


def end_services(run: Run) -> None:
    """End the optimiser's service of a run."""
    services = [each for each in psutil.process_iter() if matches(each, run, "node_scripts")]
    for process in services:
        process.terminate()
    psutil.wait_procs(services, timeout=10)


def call(folder: RunFolder, *words: str) -> None:
    """Call a run's client as a node's script does."""
    subprocess.run([folder.client, *words], check=True, capture_output=True)


if __name__ == "__main__":
    main()
