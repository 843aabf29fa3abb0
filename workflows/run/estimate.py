"""How long a run will take and what it will cost, by earlier runs of its study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median

from trialfleet.errors import TrialfleetError
from trialfleet.infra.fleet.scaling.last_report import read_report
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.plan.graph import graph_of
from trialfleet.workflows.run.lookup import FoundRun, runs_here
from trialfleet.workflows.status.job_costs import noted_job
from trialfleet.workflows.status.status import StatusReader, open_run
from trialfleet.workflows.study.frozen import CostsBefore, load_frozen
from trialfleet.workflows.study.spec import Study

_MOST_RUNS = 5  # the newest that have a complete trial


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time that a run's trials will take.

    Attributes:
        seconds: of all of them.
        trial_seconds: the median of the trials that it is based on.
        based_on: how many those are.
    """

    seconds: float
    trial_seconds: float
    based_on: int


def estimate(study: str, trials: int, concurrency: int) -> Estimate | None:
    """Return the time that trials will take; None without a complete trial of the study's before.

    Args:
        study: its name; its runs are those below `./runs`.
        trials: how many.
        concurrency: so many run at a time; with 0 there is no telling.
    """
    if not concurrency:
        return None
    known = [seconds for run in _runs_before(study) for seconds in _seconds(run.complete)]
    if not known:
        return None
    each = median(known)
    return Estimate(
        seconds=math.ceil(trials / concurrency) * each, trial_seconds=each, based_on=len(known)
    )


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What a run will cost in USD.

    Attributes:
        usd: all of it, where no budget ends it before.
        trial: the mean of the trials that it is based on, failed ones too.
        full: the mean of the full trainings; None where there were none.
        overhead: what nodes' boot and idle time adds, as a part of what jobs cost; None where no
            fleet was scaled for those runs.
        based_on: how many trials it is based on.
    """

    usd: float
    trial: float
    full: float | None
    overhead: float | None
    based_on: int


def estimate_cost(study: Study) -> CostEstimate | None:
    """Return what a run of a resolved study will cost; None where no run of it has a price."""
    runs = [run for run in _runs_before(study.name) if run.trials]
    if not runs:
        return None
    trials = [usd for run in runs for usd in run.trials]
    fulls = [usd for run in runs for usd in run.fulls]
    overheads = [run.overhead for run in runs if run.overhead is not None]
    trial, full = fmean(trials), fmean(fulls) if fulls else None
    overhead = median(overheads) if overheads and study.fleet else None
    regions = graph_of(study).regions
    jobs = sum(region.trials for region in regions) * trial
    jobs += len(regions) * (trial if full is None else full) if study.publishes else 0.0
    return CostEstimate(
        usd=jobs * (1 + (overhead or 0.0)),
        trial=trial,
        full=full if study.publishes else None,
        overhead=overhead,
        based_on=len(trials),
    )


def costs_before(study: Study) -> CostsBefore | None:
    """Return what one job of a resolved study has cost before; None where nobody knows."""
    found = estimate_cost(study)
    return CostsBefore(trial=found.trial, full=found.full) if found else None


@dataclass(frozen=True)
class _RunBefore:
    """An earlier run.

    Attributes:
        folder: its folder.
        complete: the trials that completed.
        trials: what its trials cost that are over, as far as that is known.
        fulls: what its full trainings cost.
    """

    folder: RunFolder
    complete: list[StoredTrial]
    trials: list[float]
    fulls: list[float]

    @property
    def overhead(self) -> float | None:
        """What its nodes cost beside its jobs, as a part of these; None where nobody knows."""
        step = (read_report(self.folder.fleet_state) or {}).get("step") or {}
        jobs = sum(self.trials) + sum(self.fulls)
        return max(0.0, step.get("spent", 0.0) / jobs - 1) if jobs and step.get("spent") else None


def _runs_before(study: str) -> Iterator[_RunBefore]:
    """The newest runs of a study that have a complete trial."""
    runs = (run for run in runs_here() if run.study in {study, ""})  # "": in a folder of its own
    return islice((run for each in runs if (run := _read(each, study))), _MOST_RUNS)


def _read(found: FoundRun, study: str) -> _RunBefore | None:
    """A run; None where it is another study's, can't be read, or has no complete trial."""
    try:
        folder = open_run(found.folder)
        its_study = load_frozen(folder.study).study
        if its_study.name != study:
            return None
        reader = StatusReader(folder)
        trials = [trial for region in reader.regions for trial in reader.trials(region)]
    except TrialfleetError:
        return None
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    over = [t.user_attrs.get("job") or {} for t in trials if t.state.is_finished()]
    fulls = [noted_job(folder.region(region.slug).best) for region in graph_of(its_study).regions]
    return _RunBefore(folder, complete, _costs(over), _costs(fulls)) if complete else None


def _costs(jobs: Iterable[dict[str, float | None]]) -> list[float]:
    return [usd for job in jobs if (usd := job.get("usd")) is not None]


def _seconds(trials: Iterable[StoredTrial]) -> Iterable[float]:
    for trial in trials:
        job = trial.user_attrs.get("job") or {}
        seconds = job.get("wall_seconds") or trial.user_attrs.get("seconds")
        if seconds:
            yield float(seconds)
