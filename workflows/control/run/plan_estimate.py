"""Estimates of the time and the cost of a run, from previous runs of its study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import Any

from trialfleet.errors import TrialfleetError
from trialfleet.infra.fleet.scaling.last_report import read_report
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.control.run.learn_from import earlier_runs
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.trial_executions import noted_job
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.study.frozen import FrozenStudy
from trialfleet.workflows.study.spec import Study

_MOST_RUNS = 5  # the newest runs with a complete trial

Notes = dict[str, Any]  # the record of a job, see `JobNotes`


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated time of a run.

    Attributes:
        seconds: the time of the jobs (trials, full trainings, gates), if `concurrency` jobs run in
            parallel without pauses. The time until jobs get slots, between jobs, and for publishing
            is not included.
        trial_seconds: the median time of previous trials.
        full_seconds: the median time of previous full trainings, or of trials if there were no full
            trainings. None if no full training will run.
        gate_seconds: the median time of the jobs of previous gates. None if there were none, or if
            no gate will run.
        based_on: the number of previous trials.
        runs: the number of previous runs with these trials.
    """

    seconds: float
    trial_seconds: float
    full_seconds: float | None
    gate_seconds: float | None
    concurrency: int
    based_on: int
    runs: int


def estimate(study: Study, concurrency: int) -> Estimate | None:
    """Return the estimated time of a run with `concurrency` jobs in parallel.

    Return None if `concurrency` is 0, or if no run of the study in ./runs has results.
    """
    runs = list(_earlier_runs(study.name)) if concurrency else []
    known = [seconds for run in runs for seconds in _wall_seconds(map(_job_notes, run.complete))]
    if not known:
        return None
    regions = build_graph(study).regions
    each = median(known)
    fulls = [seconds for run in runs for seconds in _wall_seconds(run.fulls)]
    gates = [seconds for run in runs for seconds in _wall_seconds(run.gates)]
    full = median(fulls or [each]) if study.publishes else None
    gate = median(gates) if study.gate and gates else None
    trials = sum(region.trials for region in regions)
    last = (full or 0.0) + (gate or 0.0)
    turns, last_turns = (math.ceil(jobs / concurrency) for jobs in (trials, len(regions)))
    return Estimate(
        seconds=turns * each + last_turns * last,
        trial_seconds=each,
        full_seconds=full,
        gate_seconds=gate,
        concurrency=concurrency,
        based_on=len(known),
        runs=len(runs),
    )


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The estimated cost of a run in USD.

    Attributes:
        usd: the cost of the whole run, if no budget ends it earlier.
        trial: the mean cost of previous trials, including failed trials.
        full: the mean cost of previous full trainings; None if there were none, or none will run.
        gate: the mean cost of the jobs of previous gates; None if there were none, or none will
            run.
        overhead: the cost of boot and idle time, divided by the cost of the jobs. None if unknown,
            or if the study has no fleet.
        based_on: the number of previous trials.
    """

    usd: float
    trial: float
    full: float | None
    gate: float | None
    overhead: float | None
    based_on: int


def estimate_cost(study: Study) -> CostEstimate | None:
    """Return the estimated cost of a run of `study`; None if no previous cost is known."""
    runs = [run for run in _earlier_runs(study.name) if _costs(run.over)]
    if not runs:
        return None
    trials = [usd for run in runs for usd in _costs(run.over)]
    fulls = [usd for run in runs for usd in _costs(run.fulls)]
    overheads = [run.overhead for run in runs if run.overhead is not None]
    gates = [usd for run in runs for usd in _costs(run.gates)]
    trial, full = fmean(trials), fmean(fulls) if fulls else None
    gate = fmean(gates) if gates and study.gate else None
    overhead = median(overheads) if overheads and study.fleet else None
    regions = build_graph(study).regions
    jobs = sum(region.trials for region in regions) * trial
    jobs += len(regions) * (trial if full is None else full) if study.publishes else 0.0
    jobs += len(regions) * (gate or 0.0)
    return CostEstimate(
        usd=jobs * (1 + (overhead or 0.0)),
        trial=trial,
        full=full if study.publishes else None,
        gate=gate,
        overhead=overhead,
        based_on=len(trials),
    )


@dataclass(frozen=True)
class _RunBefore:
    """A previous run, with its complete trials and its records of times and costs.

    `over` has a record of the job of each ended trial. `fulls` and `gates` have the records of the
    jobs of full trainings and of gates.
    """

    folder: RunFolder
    complete: list[StoredTrial]
    over: list[Notes]
    fulls: list[Notes]
    gates: list[Notes]

    @property
    def overhead(self) -> float | None:
        """The cost of boot and idle time, divided by the cost of the jobs; None if unknown."""
        step = (read_report(self.folder.fleet_state) or {}).get("step") or {}
        jobs = sum(_costs([*self.over, *self.fulls, *self.gates]))
        return max(0.0, step.get("spent", 0.0) / jobs - 1) if jobs and step.get("spent") else None


def _earlier_runs(study: str) -> Iterator[_RunBefore]:
    runs = (_read(folder, frozen) for folder, frozen in earlier_runs(study))
    return islice(filter(None, runs), _MOST_RUNS)


def _read(folder: RunFolder, frozen: FrozenStudy) -> _RunBefore | None:
    try:
        trials = [trial for of in RunTrials(folder, frozen).read().values() for trial in of]
    except TrialfleetError:
        return None
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    if not complete:
        return None
    files = [folder.region(region.slug) for region in build_graph(frozen.study).regions]
    return _RunBefore(
        folder=folder,
        complete=complete,
        over=[_job_notes(trial) for trial in trials if trial.state.is_finished()],
        fulls=[noted_job(region.best) for region in files],
        gates=[noted_job(region.gate) for region in files],
    )


def _job_notes(trial: StoredTrial) -> Notes:
    return trial.user_attrs.get("job") or {}


def _costs(jobs: Iterable[Notes]) -> list[float]:
    return [usd for job in jobs if (usd := job.get("usd")) is not None]


def _wall_seconds(jobs: Iterable[Notes]) -> list[float]:
    return [seconds for job in jobs if (seconds := job.get("wall_seconds"))]
