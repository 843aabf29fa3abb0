"""Time and cost from a trial's end to the next one's start: in separate jobs, and in one lane.

A lane's job trains one trial after another; its trainers write begin and end to a ledger. For the
chain of jobs, and for a DAG without trialfleet, the gap between jobs is read from HTCondor's logs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import psutil

from tests.bench.printing import line
from tests.bench.usage import cpu_by_role, difference, parts
from tests.pool_settings import configured_pool
from trialfleet import Run, Study, plan
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool

TRIALS = 12
LANE_TRIALS = 100  # of a lane: long enough that its start counts for little
SHELL = """\
#!/bin/sh
echo "begin $(date +%s.%N)" >> {ledger}
[ -d model ] && echo 1 > model/weights
echo '{{"schema": 1, "status": "complete", "metrics": {{"loss": 1.5}}}}' > result.json
echo "end $(date +%s.%N)" >> {ledger}
"""
STAYING = """\
import time
import trial

def noted(word):
    with open({ledger!r}, "a") as ledger:
        ledger.write(f"{{word}} {{time.time()}}\\n")

def train(t):
    noted("begin")
    if t.mode == "final":
        (t.model / "weights").write_text("1")
    noted("end")
    t.complete(loss=(t.params["x0"] - 0.3) ** 2)

trial.run(train)
"""


class MakeStudy(Protocol):
    """Makes a study; see `tests.bench.__main__.make_study`."""

    def __call__(
        self,
        base: Path,
        regions: int,
        trials: int,
        lanes: int,
        *,
        nap: float = ...,
        per_job: int | None = ...,
    ) -> Study: ...


@contextmanager
def one_slot_pool(base: Path) -> Iterator[Pool]:
    """Start a pool that runs one job at a time."""
    pool = configured_pool(base / "pool", cpus=1)
    try:
        pool.up()
        use(pool.environment())
        yield pool
    finally:
        pool.down(grace=2)


def bench_turnaround(base: Path, make_study: MakeStudy) -> None:
    """Time short trials in one chain, then longer ones in two chains that share a slot."""
    plain = median(gaps(run_plain_chain(base)))
    one = plan(make_study(base, 1, TRIALS, lanes=1, per_job=1), run="one", out=base / "one")
    memory = run_and_weigh(one)
    chain = gaps(logs_of(one))
    line("chain of jobs: trial ends -> next runs", median(chain), plain, "s", "bare DAG")
    two = make_study(base, 1, TRIALS, lanes=2, nap=5.0, per_job=1)
    run = plan(two, run="two", out=base / "two")
    run_and_weigh(run)
    line(
        "slot idle between queued trials (two lanes)",
        median(gaps(logs_of(run))),
        plain,
        "s",
        "bare DAG",
    )
    for name, megabytes in memory.items():
        line(f"memory of {name} (PSS)", megabytes, bare_python(), "MB", "a bare Python")


def bench_lane(base: Path, pool: Pool, make_study: MakeStudy) -> None:
    """Time one lane alone, whose trainers do nothing, from one trial to the next."""
    plain = median(gaps(run_plain_chain(base)))
    kinds = (("sh", SHELL, "a new process each"), ("py", STAYING, "one that stays"))
    for kind, text, what in kinds:
        for has_model in (False, True):
            name = f"{kind}-{'model' if has_model else 'design'}"
            study = lane_study(base, make_study, kind, text, has_model=has_model)
            run = plan(study, run=name, out=base / name)
            ledger, used, trials = run_lane(run, pool, base / f"{kind}.ledger")
            led = "model chooses" if has_model else "design chooses"
            spans = [later - ended for ended, later in between(ledger)]
            tail = spans[len(spans) // 2 :]  # where the model leads, if it does
            line(f"lane, {what}, {led}: end -> begin", median(tail), plain, "s", "bare DAG")
            here, there = (part / trials for part in parts(used))
            what_used = "  its CPU: access point, node beside training"
            print(f"{what_used:<52} {here:8.3f} s + {there:.3f} s", flush=True)


def lane_study(
    base: Path, make_study: MakeStudy, kind: str, text: str, *, has_model: bool
) -> Study:
    """Return a study of one lane whose trainers write the ledger."""
    ledger = base / f"{kind}.ledger"
    ledger.unlink(missing_ok=True)
    (base / f"lane.{kind}").write_text(text.format(ledger=str(ledger)))
    study = make_study(base, 1, LANE_TRIALS, lanes=1)
    trainer = {"command": ["python3" if kind == "py" else "sh", f"lane.{kind}"]}
    plain = study.model_dump()
    plain["trainer"] |= trainer | {"files": [str(base / f"lane.{kind}")]}
    plain["budget"] |= {"startup_trials": 5 if has_model else LANE_TRIALS, "job_minutes": 600.0}
    plain["resources"]["memory"] = "256MB"
    return Study.model_validate(plain).resolve(base)


def run_lane(run: Run, pool: Pool, ledger: Path) -> tuple[list[str], dict[str, float], int]:
    """Run to the end; return the ledger, and the processor time between two numbers of trials."""
    looks: list[tuple[int, dict[str, float]]] = []
    run.submit()
    while run.status().state == "running":
        time.sleep(0.5)
        ended = ledger.read_text().count("end") if ledger.exists() else 0
        if 5 < ended < LANE_TRIALS:
            looks.append((ended, cpu_by_role(pool)))
    assert run.status().state == "done", run.status()
    (first, before), (last, after) = looks[0], looks[-1]
    return ledger.read_text().splitlines(), difference(before, after), last - first


def between(ledger: list[str]) -> list[tuple[float, float]]:
    """Return the time of each trial's end with the time of the next one's begin."""
    noted = [(word, float(when)) for word, when in (line.split() for line in ledger)]
    return [
        (ended, begun)
        for (first, ended), (second, begun) in pairwise(noted)
        if (first, second) == ("end", "begin")
    ]


def median(values: list[float]) -> float:
    """Return the median of at least one value."""
    return statistics.median(values)


def run_and_weigh(run: Run) -> dict[str, float]:
    """Run to the end; return the largest memory of the service and of DAGMan, in MB."""
    largest: dict[str, float] = {}
    run.submit()
    for _ in run.watch(every=1):
        for name, word in (
            ("service", "programs serve"),
            ("DAGMan, per region", "region.dag"),
        ):
            weights = [pss(p) for p in psutil.process_iter() if matches(p, run, word)]
            largest[name] = max([largest.get(name, 0.0), *weights])
    assert run.status().state == "done", run.status()
    return largest


def matches(process: psutil.Process, run: Run, word: str) -> bool:
    """Return whether a process belongs to the run and has `word` in its command."""
    try:
        command, folder = " ".join(process.cmdline()), process.cwd()
    except psutil.Error:
        return False
    own = str(run.folder)
    return word in command and (own in command or folder.startswith(own))


def pss(process: psutil.Process) -> float:
    """Return a process's memory in MB; shared memory is divided among its processes."""
    try:
        return float(process.memory_full_info().pss) / 1e6
    except psutil.Error:
        return 0.0


def bare_python() -> float:
    """Return the memory of an interpreter that does nothing, in MB."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE
    ) as bare:
        time.sleep(0.3)
        weight = pss(psutil.Process(bare.pid))
        bare.kill()
    return weight


@cache
def run_plain_chain(base: Path) -> list[Path]:
    """Run the same jobs as a DAG without scripts, whose files trialfleet didn't write."""
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
    """Return the event logs of a run's trials."""
    return sorted(run.folder.glob("regions/*/trials/*/log"))


def gaps(logs: list[Path]) -> list[float]:
    """Return the seconds between each job's end and the next one's start, on one slot."""
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
    """Return the time of an event, to the millisecond."""
    return datetime.fromisoformat(event["EventTime"]).timestamp()
