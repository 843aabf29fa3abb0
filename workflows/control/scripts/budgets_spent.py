"""The budgets in USD of a region, a run and a day, with the money spent so far.

The optimiser's service checks the budgets at each request for a trial's parameters, by the rules in
optimizer/budget_and_deadline_rules.py. So no trial starts beyond a budget. Until the result of a
job is recorded, the job's cost is read from its event log.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import OptimizerError, TrialfleetError
from trialfleet.files import exists, unless_damaged
from trialfleet.optimizer.budget_and_deadline_rules import UsdBudget
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.jobs.job_log import total_cost
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.runs.trial_executions import between_stays, end_stays, trial_stays
from trialfleet.workflows.rules.budget_amounts import (
    ExpectedCosts,
    Spending,
    expected_costs,
    usd_budget,
)
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.workflows.facts.runs.failed_attempts import AnyTrial

_OTHERS_SECONDS = 10.0  # other runs' spending is read again after this time


class Budgets:
    """The budgets of one run. Not thread-safe."""

    def __init__(self, studies: RegionStudies) -> None:
        self._studies, self._folder, self._frozen = studies, studies.folder, studies.frozen
        self._study = studies.study
        before = studies.frozen.costs
        self._before = (
            ExpectedCosts(trial=before.trial, full=before.full or 0.0) if before else None
        )
        self._others: tuple[float, list[Spending]] = (0.0, [])
        self._days: dict[Path, _OtherRun | None] = {}  # by folder; None: a run of another day

    def gather(self, slug: str) -> Iterator[UsdBudget]:
        """Yield the budgets in USD that limit the trials of the region `slug`."""
        budget = self._study.region_budget(self._studies.regions[slug].name)
        if not budget.in_usd:
            return
        own = self._region_spending(slug)
        run = (
            self._run_spendings()
            if budget.usd_per_run or budget.usd_per_day or not own.trials
            else []
        )
        day = self._day_spendings() if budget.usd_per_day else []
        scopes = (
            ("budget.usd", budget.usd, [own], [own] if own.trials else run),
            ("budget.usd_per_run", budget.usd_per_run, run, run),
            ("budget.usd_per_day", budget.usd_per_day, [*run, *day], [*run, *day]),
        )
        for name, usd, spendings, alike in scopes:
            if usd:
                yield usd_budget(name, usd, spendings, expected_costs(alike, self._before))

    def _region_spending(self, slug: str) -> Spending:
        trials = self._studies.get_study(slug).trials()
        spent = region_spending(self._folder.region(slug), trials, self._study, time.time())
        # The cost of a region's first job so far must not prevent the region's first trial.
        return spent if trials else replace(spent, others=0.0)

    def _run_spendings(self) -> list[Spending]:
        """Return each region's costs so far, and its expected costs.

        For a region that hasn't begun, only its full training is expected.
        """
        return [
            self._region_spending(slug)
            if self._folder.region(slug).dag_files.submit.exists()
            else region_spending(self._folder.region(slug), [], self._study, time.time())
            for slug in self._studies.regions
        ]

    def _day_spendings(self) -> list[Spending]:
        when, known = self._others
        if time.monotonic() - when > _OTHERS_SECONDS or not when:
            known = [each for run in self._runs_of_day() for each in run.read_spendings()]
            self._others = time.monotonic(), known
        return known

    def _runs_of_day(self) -> Iterator[_OtherRun]:
        for study in sorted(self._folder.root.parent.glob(f"[!.]*/{self._folder.study.name}")):
            place = study.parent
            if place not in self._days:
                self._days[place] = self._open_other_run(place)
            if run := self._days[place]:
                yield run

    def _open_other_run(self, place: Path) -> _OtherRun | None:
        folder, own = RunFolder(place), (self._study.name, self._frozen.cost_day)
        try:
            frozen = load_frozen(folder.study)
            is_of_day = place != self._folder.root and (frozen.study.name, frozen.cost_day) == own
            return _OtherRun(folder, frozen) if is_of_day else None
        except (TrialfleetError, OSError, ValueError) as error:
            if _was_planned_before(folder, own[1]):
                return None
            raise _unknown_cost_error(folder, error) from error


def _was_planned_before(folder: RunFolder, day: date) -> bool:
    """Return whether a run is surely from before `day`, or was removed."""
    written = unless_damaged(lambda: folder.study.stat().st_mtime, math.inf)
    return written < datetime.combine(day, datetime.min.time()).timestamp() or not exists(
        folder.root
    )


def _unknown_cost_error(folder: RunFolder, error: Exception) -> OptimizerError:
    return OptimizerError(
        f"the cost of the run {str(folder.root)!r}, which counts for budget.usd_per_day, is "
        f"unknown: {error}"
    )


class _OtherRun:
    def __init__(self, folder: RunFolder, frozen: FrozenStudy) -> None:
        self._folder, self._frozen = folder, frozen
        self._trials = RunTrials(folder, frozen)

    def read_spendings(self) -> list[Spending]:
        """Return each region's costs. A run that isn't under way has no expected costs.

        OptimizerError if the run's trials can't be read: its costs must not count as 0 USD.
        """
        if not self._folder.study.exists():  # it was removed
            return []
        try:
            found = self._trials.read()
        except OptimizerError as error:
            raise _unknown_cost_error(self._folder, error) from error
        study = self._frozen.study
        is_under_way = any(files.lock.exists() for files in self._folder.all_dags())
        now = time.time() if is_under_way else None
        known = [
            region_spending(self._folder.region(r.slug), found[r.name], study, now)
            for r in build_graph(study).regions
        ]
        return known if is_under_way else [each.as_if_ended() for each in known]


def region_spending(
    files: RegionFolder, trials: Iterable[AnyTrial], study: Study, now: float | None
) -> Spending:
    """Return what a region has spent. A job without a known price counts as 0 USD.

    Running jobs are counted up to `now`. Pass None if no job of the run is running.
    """
    costs = {trial.number: (trial, trial_stays(files, trial, study, now)) for trial in trials}
    full = end_stays(files, files.best, study, now)
    gate = end_stays(files, files.gate, study, now)
    between = between_stays(files, study, now)
    return Spending(
        trials=tuple(
            usd
            for trial, stays in costs.values()
            if trial.state.is_finished() and (usd := total_cost(stays)) is not None
        ),
        under_way=tuple(
            total_cost(stays) or 0.0
            for trial, stays in costs.values()
            if not trial.state.is_finished()
        ),
        full=total_cost(full) if full else None,
        full_is_over=files.is_done or files.stopped.exists() or not study.publishes,
        others=(total_cost(gate) or 0.0) + (total_cost(between) or 0.0),
    )
