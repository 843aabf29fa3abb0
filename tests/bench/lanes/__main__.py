"""A thousand jobs at once on one access point, each a lane that trains one trial after another.

The trainers sleep and report. The bench prints the access point's processor time and memory, per
trial and per job, and how long agents wait for the next order. For comparison it prints the same
for jobs with one trial each (fewer of them), and an estimate for ten thousand jobs. The processor
time of nodes is left out: a real pool has more nodes for more jobs, but one access point.
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from tests.bench.lanes.answers import Answers
from tests.bench.lanes.study import lanes_study
from tests.bench.usage import (
    NODE,
    cpu_by_role,
    difference,
    memory_by_role,
    parts,
)
from tests.pool_settings import configured_pool
from trialfleet import Run, plan
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool

MANY, TRIAL_SECONDS = 10_000, 300.0  # jobs, and their trials' length, of the arithmetic
CORES, MEMORY_GB = 8, 64  # an access point, there
QUIET_SECONDS = 30.0  # in which no trial ends, and before that none runs
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Cost:
    """The access point's costs, less those of an idle pool.

    Attributes:
        trial: processor seconds of a trial's end and the next one's begin.
        job_second: processor seconds per second of a job that trains.
        memory_mb: of a job.
        fixed_mb: independent of the number of jobs.
    """

    trial: float
    job_second: float
    memory_mb: float
    fixed_mb: float

    def of_trial(self, seconds: float) -> float:
        """Processor seconds of a whole trial that trains for `seconds`."""
        return self.trial + seconds * self.job_second


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, default=1000, help="lanes in all [1000]")
    parser.add_argument("--regions", type=int, default=50, help="among which they are [50]")
    parser.add_argument("--minutes", type=float, default=10.0, help="of measuring [10]")
    parser.add_argument("--nap", type=float, default=120.0, help="seconds of a trial, ± half [120]")
    parser.add_argument("--chain", type=int, default=50, help="jobs of one trial each [50]")
    parser.add_argument("--model", action="store_true", help="let the model choose, as it does")
    given = parser.parse_args()
    base = platformdirs.user_cache_path("trialfleet") / "bench-lanes"
    shutil.rmtree(base, ignore_errors=True)
    # A slot is declared for each job; its sleeping trainer does not use its resources.
    slots = max(given.jobs, given.chain) + 2
    knobs = {"STARTER_UPDATE_INTERVAL": "300", "SHADOW_QUEUE_UPDATE_INTERVAL": "900"}
    pool = configured_pool(base / "pool", cpus=slots, memory_mb=128 * slots, knobs=knobs)
    try:
        pool.up(seconds=180)
        use(pool.environment())
        lanes = measured(base / "all", pool, given, given.jobs, given.regions, "all")
        tell_of_many(lanes, given.jobs)
        if given.chain:
            regions = min(given.regions, max(1, given.chain // 20))
            chain = measured(base / "one", pool, given, given.chain, regions, 1)
            print(
                f"a trial costs {chain.trial / lanes.trial:.1f} times as much in a job of its own"
            )
    finally:
        pool.down(grace=5)
        shutil.rmtree(base, ignore_errors=True)


def measured(
    base: Path,
    pool: Pool,
    given: argparse.Namespace,
    jobs: int,
    regions: int,
    per_job: Literal["all"] | int,
) -> Cost:
    """Let jobs train at once: first no trial ends, then trials end for the given minutes."""
    lanes = math.ceil(jobs / regions)
    jobs = lanes * regions
    nap = 0.5 * given.nap, 1.5 * given.nap
    trials = min(10_000, math.ceil(lanes * (2 + 120 * given.minutes / given.nap)))
    study = lanes_study(
        base, regions, lanes, trials=trials, has_model=given.model, nap=nap, per_job=per_job
    )
    before = memory_by_role(pool)
    first = cpu_by_role(pool)
    time.sleep(QUIET_SECONDS)
    idle = parts(difference(first, cpu_by_role(pool)))[0] / QUIET_SECONDS
    run = plan(study, run=base.name, out=base / "run")
    begun = time.time()
    run.submit()
    wait_for(run, jobs)
    print(
        f"\n{jobs} jobs, {regions} regions, trials_per_job {per_job}: "
        f"all run after {time.time() - begun:.0f} s",
        flush=True,
    )
    first = cpu_by_role(pool)
    time.sleep(QUIET_SECONDS)
    quiet, _ = parts(difference(first, cpu_by_role(pool)))
    job_second = max(0.0, quiet / QUIET_SECONDS - idle) / jobs
    memory = memory_by_role(pool)
    (base / "go").touch()
    time.sleep(0.6 * given.nap)  # the first have ended
    answers, first, finished_before = Answers(run), cpu_by_role(pool), finished(run)
    until = time.monotonic() + 60 * given.minutes
    began = time.monotonic()
    while time.monotonic() < until:
        answers.look()
        time.sleep(LOOK_SECONDS)
    used, ended = difference(first, cpu_by_role(pool)), finished(run) - finished_before
    seconds = time.monotonic() - began
    here, there = parts(used)
    print(f"{ended} trials ended in {seconds:.0f} s; processor seconds of each:")
    for role, value in sorted(used.items(), key=lambda one: -one[1]):
        if value / ended >= 5e-5:
            print(f"  {role:<44} {value / ended:8.4f}")
    cost = Cost(
        trial=max(0.0, here - (idle + job_second * jobs) * seconds) / ended,
        job_second=job_second,
        memory_mb=(growth(before, memory, own=True) - memory["service"][1]) / jobs,
        fixed_mb=memory["service"][1] + growth({}, before, own=True),
    )
    print(
        f"access point: {here / ended:.4f} s of a processor a trial, {idle * seconds / ended:.4f} "
        f"of it an idle pool's, {cost.trial:.4f} for its end and the next, and "
        f"{1e3 * job_second:.3f} ms for each second that it trains; "
        f"nodes beside training: {there / ended:.4f} s"
    )
    shadows = memory.get("condor_shadow", (0, 0.0))
    print(
        f"memory of a job: access point {cost.memory_mb:.2f} MB (its shadow "
        f"{shadows[1] / max(1, shadows[0]):.2f}), node "
        f"{growth(before, memory, own=False) / jobs:.2f} MB"
    )
    if per_job == "all":
        print(f"agent's words -> order: {answers.as_text()}")
    run.stop()
    return cost


def growth(
    before: dict[str, tuple[int, float]], after: dict[str, tuple[int, float]], *, own: bool
) -> float:
    """Return the memory in MB that the jobs added, on the access point or on the nodes."""
    sums = [
        sum(megabytes for role, (_, megabytes) in look.items() if role.startswith(NODE) != own)
        for look in (before, after)
    ]
    return sums[1] - sums[0]


def wait_for(run: Run, jobs: int) -> None:
    """Wait until the agents of `jobs` jobs have begun a trial."""
    while sum(1 for _ in run.folder.glob("regions/*/trials/*/words/agent.json")) < jobs:
        time.sleep(2.0)


def finished(run: Run) -> int:
    """Return the number of recorded trials of all regions."""
    return sum(trial.value is not None for trial in run.trials())


def tell_of_many(cost: Cost, jobs: int) -> None:
    """Print the estimate for ten thousand jobs."""
    each = cost.of_trial(TRIAL_SECONDS)
    cores = MANY / TRIAL_SECONDS * each
    gigabytes = (MANY * cost.memory_mb + cost.fixed_mb) / 1e3
    by_cpu, by_memory = math.ceil(cores / (0.5 * CORES)), math.ceil(gigabytes / (0.8 * MEMORY_GB))
    print(
        f"from {jobs} jobs to {MANY}, with trials of {TRIAL_SECONDS / 60:.0f} minutes: "
        f"{MANY / TRIAL_SECONDS:.0f} trials end a second; {each:.4f} s of a processor each, "
        f"{cores:.1f} cores and {gigabytes:.0f} GB in all. Access points of {CORES} cores and "
        f"{MEMORY_GB} GB, half and four fifths of which are used: {by_cpu} by their processors, "
        f"{by_memory} by their memory. One run's service answers on one core: its part of a trial "
        "bounds a run, so several runs divide the regions."
    )


if __name__ == "__main__":
    main()
