"""The work on one attempt at a day: plan a run, watch the run, and record the outcomes.

The process that does this work may be killed at any moment and started again, because it keeps no
state of its own. Decisions are in the journal, the plan is in the run's folder, and jobs are in
HTCondor's queue. `day_lock` lets only one process at a time work on an attempt.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import ExportError, FleetError, InputError, OptimizerError, PoolError
from trialfleet.files import shell_quoted
from trialfleet.infra.pool.connection import connect
from trialfleet.workflows.checksums import Checksums
from trialfleet.workflows.control.daily.late_data import awaited_regions, unusable_regions
from trialfleet.workflows.control.daily.pool_watch import PoolWatch
from trialfleet.workflows.control.daily.region_outcomes import RunsEndings
from trialfleet.workflows.control.daily.staleness import model_age, stalest_first
from trialfleet.workflows.control.daily.unchanged_regions import (
    data_fingerprint,
    settings_fingerprint,
)
from trialfleet.workflows.control.run.new_run import plan_day
from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.formatting import result_text
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.status_types import RunStatus
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.loading import load_day, load_whole
from trialfleet.workflows.study.paths import DataError
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.workflows.control.takeover.manager_lease import Managers

POLL_SECONDS = 2.0
LATE_SECONDS = 15.0  # between two checks for late data
AWAY_SECONDS = 30.0  # between two tries while HTCondor or AWS is unreachable
LOST_SECONDS = 60.0  # until a lost run is resumed; the pool's supervisor, if any, repairs it sooner
_UNDER_WAY = {RunState.RUNNING, RunState.HELD, RunState.UNKNOWN}
_ANOTHER_DAY = "the study no longer has this region"

Clock = Callable[[], datetime]
Say = Callable[[str], None]


@dataclass(frozen=True)
class DailyWork:
    """The work on the days of one study file."""

    file: Path
    folder: DailyFolder
    journal: Journal
    clock: Clock  # returns the time, with a time zone
    say: Say  # takes a line for each event
    tell: Callable[[Attempt, Mapping[str, str]], None] = lambda _attempt, _awaited: None
    # sends alerts when an attempt is planned; the second argument has the regions without data
    managers: Managers | None = None  # if another manager may work on the days

    def steps(self, attempt: Attempt) -> Iterator[float]:
        """Work on an attempt until each region has an outcome or is in a later attempt.

        Yield the number of seconds to wait before the next step. InputError if the study's file
        can't be used. The attempt then stays open.
        """
        if attempt.ended:
            return
        if run := (yield from self._find_or_plan_run(attempt)):
            if self.managers:
                self.managers.take_over_run(run.folder)
            yield from self._watch(run, attempt)
            while self._unplanned_regions(run, attempt) and self._has_late_regions():
                yield LATE_SECONDS  # until another attempt has taken them
        self.fail(
            attempt,
            dict.fromkeys(
                self.remaining_regions(attempt), f"the run {attempt.run} lacks this region"
            ),
        )
        self.journal.end(attempt, self.clock())

    def take_arrived(self, attempt: Attempt) -> list[str]:
        """Return the regions that need a later attempt, because the attempt's run lacks them.

        While the day waits for data, return only regions whose data is complete now.
        """
        place = RunFolder(self.folder.run(attempt.run))
        if attempt.ended or not place.study.exists():
            return []
        if not (late := self._unplanned_regions(Run(place.root), attempt)):
            return []
        still = awaited_regions(self.file, attempt, self.clock())
        return [region for region in late if region not in still]

    def fail(self, attempt: Attempt, whys: Mapping[str, str]) -> None:
        """Record that regions failed before they had a run. `whys` has the reason for each."""
        failed = [attempt.outcome(region, Ending.FAILED, why) for region, why in whys.items()]
        self.journal.record(failed, self.clock())

    def remaining_regions(self, attempt: Attempt) -> list[str]:
        """Return the attempt's regions that have no outcome yet and are in no later attempt."""
        found = self.journal.outcomes(attempt.date, attempt.date)
        gone = {one.region for one in found if one.attempt == attempt.attempt}
        for other in self.journal.attempts(attempt.date):
            gone |= set(other.regions if other.attempt > attempt.attempt else ())
        return [region for region in attempt.regions if region not in gone]

    def _unplanned_regions(self, run: Run, attempt: Attempt) -> list[str]:
        planned = load_frozen(RunFolder(run.folder).study).study.region_table
        return [region for region in self.remaining_regions(attempt) if region not in planned]

    def _has_late_regions(self) -> bool:
        daily = load_whole(self.file).daily
        return daily is not None and daily.wait_for_data is not None

    # -- the plan --------------------------------------------------------------------------------

    def _find_or_plan_run(self, attempt: Attempt) -> Generator[float, None, Run | None]:
        """Return the attempt's run, and plan it if it does not exist yet.

        Yield the number of seconds to wait before the next try. Return None if no region needs a
        run, or if the deadline passed before a run was planned.
        """
        place = self.folder.run(attempt.run)
        while not RunFolder(place).study.exists():
            if not (left := self.remaining_regions(attempt)):
                return None
            if attempt.is_past_deadline(self.clock()):
                why = "the day's deadline was over before the region began"
                self.fail(attempt, dict.fromkeys(left, why))
                return None
            late = awaited_regions(self.file, attempt, self.clock())
            awaited = {region: late[region] for region in left if region in late}
            try:
                self._plan(attempt, [region for region in left if region not in awaited])
            except (PoolError, FleetError) as error:
                yield self._retry_seconds(error)
            self.tell(attempt, awaited)
            if awaited and self.remaining_regions(attempt) == [*awaited]:
                yield LATE_SECONDS
        return Run(place)

    def _plan(self, attempt: Attempt, left: list[str]) -> None:
        """Plan a run for the regions in `left`. Record the outcomes of those that need no run."""
        study = self._study_to_train(attempt, left) if left else None
        if study is None:
            return
        try:
            connect()  # the pool decides settings that the study leaves open
            day = self._runs_day(attempt, study)
            study, out = stalest_first(study, self.clock()), self.folder.run(attempt.run)
            plan_day(study, attempt.run, out, day, self.file, self.say)
        except DataError as error:
            self.fail(attempt, {name: "; ".join(lines) for name, lines in error.by_region.items()})
        except (InputError, OSError) as error:
            self.fail(attempt, dict.fromkeys(study.region_table, f"not planned: {error}"))

    def _study_to_train(self, attempt: Attempt, left: list[str]) -> Study | None:
        """Return the study, reduced to the regions in `left` that must be trained.

        Record the outcomes of the other regions in `left`. Return None if no region needs training.
        """
        found = load_day(self.file, attempt.date)
        there = found.usable
        unusable = unusable_regions(found, attempt.date, found.whole.daily, self.say)
        gone = [name for name in left if name in unusable or name not in there]
        self.fail(attempt, {name: unusable.get(name, _ANOTHER_DAY) for name in gone})
        others = [name for name in there if name not in left or name in gone]
        if found.study is None or len(others) == len(there):
            return None
        study = found.study.without_regions(others)
        unchanged = self._record_unchanged(attempt, study)
        return (
            study.without_regions(unchanged) if len(unchanged) < len(study.region_table) else None
        )

    def _record_unchanged(self, attempt: Attempt, study: Study) -> list[str]:
        """Record regions as unchanged if they have the data and settings of their last model.

        Return these regions. A region without a current model counts as changed.
        """
        if study.daily is None or study.daily.unchanged == "train":
            return []
        checksums = Checksums(self.folder.checksums)
        data = {name: data_fingerprint(study, name, checksums) for name in study.region_table}
        settings = self._runs_day(attempt, study).settings
        # without {date} in `data`, the files are always those of the newest day
        is_dated = load_whole(self.file).is_dated
        last = self.journal.last_models(attempt.date if is_dated else None)
        same = [
            attempt.outcome(name, Ending.UNCHANGED, "", fingerprint=known, settings=settings[name])
            for name, known in data.items()
            if known is not None and name in last
            if (last[name].fingerprint, last[name].settings) == (known, settings[name])
            if model_age(study, name, self.clock()) is not None
        ]
        self.journal.record(same, self.clock())
        return [one.region for one in same]

    def _runs_day(self, attempt: Attempt, study: Study) -> RunsDay:
        return RunsDay(
            date=attempt.date,
            deadline=attempt.deadline,
            settings={name: settings_fingerprint(study, name) for name in study.region_table},
        )

    # -- the run ---------------------------------------------------------------------------------

    def _watch(self, run: Run, attempt: Attempt) -> Iterator[float]:
        """Start or resume a run, wait for its end, and record the outcome of each region."""
        frozen = load_frozen(RunFolder(run.folder).study)
        endings = RunsEndings(attempt, RunFolder(run.folder), frozen)
        resumer = _Resumer(run, self.say)
        reporter, pool = _OutcomeReporter(self.say), PoolWatch(self.say)
        while True:
            try:
                status = run.status()
                pool.update(status)
                ended = [one for one in endings.published_outcomes(status) if self._is_safe(one)]
                self.journal.record(ended, self.clock())
                reporter.report(ended, status)
                if resumer.resume(status) and all(map(self._is_safe, endings.all_outcomes(status))):
                    break
            except InputError as error:  # the run can't be started
                if run.status().state not in _UNDER_WAY:  # else another process just started it
                    self.journal.record(endings.failed_outcomes(str(error)), self.clock())
                    return
            except (PoolError, FleetError, OptimizerError, ExportError) as error:
                yield self._retry_seconds(error)
            else:
                yield POLL_SECONDS
        self.journal.record(endings.all_outcomes(status), self.clock())
        reporter.report(endings.all_outcomes(status), status)
        if run.report.exists():
            self.say(f"report  {shlex.quote(str(run.report))}")

    def _is_safe(self, one: Outcome) -> bool:
        return self.managers is None or self.managers.is_safe(one)

    def _retry_seconds(self, error: Exception) -> float:
        self.say(f"retried in {AWAY_SECONDS:.0f} s: {error}")
        return AWAY_SECONDS


class _OutcomeReporter:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._reported: set[str] = set()

    def report(self, outcomes: Iterable[Outcome], status: RunStatus) -> None:
        regions = {region.name: region for region in status.regions}
        for one in outcomes:
            if one.region not in self._reported:
                self._reported.add(one.region)
                region = regions.get(one.region)
                value = region.best if region else None
                reached = "" if value is None else f", best {result_text(status.metric, value)}"
                gate = f"; {region.gate}" if region and region.gate else ""
                why = f"; {one.why}" if one.ending is Ending.KEPT else gate
                self._say(f"{one.region}: {_outcome_text(one, status)}{reached}{why}")


def _outcome_text(one: Outcome, status: RunStatus) -> str:
    """Return a region's outcome in words.

    A stopped region has the outcome "failed". Its text says that it was stopped.
    """
    stopped = {r.name for r in status.regions if r.stage is Stage.STOPPED}
    is_stopped = one.ending is Ending.FAILED and one.region in stopped
    return "stopped before it had a model" if is_stopped else str(one.ending)


class _Resumer:
    """Submits a run that is only planned, and resumes a run that is lost or stopped.

    Only the first call of `resume` resumes a stopped run. A run stopped later stays stopped.
    """

    def __init__(self, run: Run, say: Say) -> None:
        self._run = run
        self._say = say
        self._is_first = True
        self._lost_since: float | None = None

    def resume(self, status: RunStatus) -> bool:
        """Submit or resume the run if necessary. Return True if the run is over."""
        is_first, self._is_first = self._is_first, False
        if status.state is not RunState.LOST:
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = time.monotonic()
        if status.state is RunState.PLANNED:
            # even if no slot can run one of the regions, the other regions get their models
            job = self._run.submit(anyway=self._run.check_pool().can_begin)
            self._say(f"submitted as job {job}: {self._run.folder}")
            self._say(f"  watch it: trialfleet status {shell_quoted(self._run.folder)} --watch")
            return False
        has_been_lost = self._lost_since and time.monotonic() - self._lost_since > LOST_SECONDS
        if (status.state is RunState.STOPPED and is_first) or has_been_lost:
            self._say(f"resumed as job {self._run.resume()}: {self._run.folder}")
            self._lost_since = None
            return False
        return status.ended
