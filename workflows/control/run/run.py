"""The class `Run`, which submits, watches, stops, resumes, removes and reads a run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import InputError, OptimizerError
from trialfleet.files import shell_quoted
from trialfleet.infra.fleet.scaling import down_note
from trialfleet.infra.pool.htcondor_installation import say_nothing
from trialfleet.workflows.control.dagman import repair
from trialfleet.workflows.control.dagman.repair import run_locked
from trialfleet.workflows.control.plan.input_provenance import freeze_data
from trialfleet.workflows.control.plan.pool_check import PoolCheck, check_pool
from trialfleet.workflows.control.run.reopened_days import reopen_day
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.runs.run_storage import check_ours
from trialfleet.workflows.rules.states import RunState, TrialState
from trialfleet.workflows.status.attempts.outcome import final_metrics
from trialfleet.workflows.status.costs.run_costs import Costs, cost
from trialfleet.workflows.status.run_faults import faults
from trialfleet.workflows.status.run_trials import RunTrials, Trial, build_trial, build_trials
from trialfleet.workflows.status.status_reader import StatusReader, open_run
from trialfleet.workflows.status.status_types import BestSettings, RunStatus
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.workflows.control.run import trainer_check

_POLL_SECONDS = 2.0


class Run:
    """One execution of a study, in a folder made by `plan`. InputError if the folder has no run."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._files = open_run(Path(folder))
        self._reader = StatusReader(self._files, brief=True)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        from trialfleet.workflows.views.terminal.status_view import run_view, to_html

        return to_html(run_view(self.status()))

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._files.root

    @property
    def report(self) -> Path:
        """The path of the report's HTML page, which exists once the run has ended."""
        return self._files.report_page

    @property
    def run_id(self) -> str:
        """The run's id."""
        return load_frozen(self._files.study).run

    @property
    def study(self) -> Study:
        """The run's study, as it was when the run was planned."""
        return load_frozen(self._files.study).study

    @property
    def notes(self) -> tuple[str, ...]:
        """The choices that planning made for the study, with the reasons."""
        return load_frozen(self._files.study).notes

    def check_pool(self) -> PoolCheck:
        """Check whether slots of the present pool can run the run's trials."""
        return check_pool(self._files)

    def check(
        self, progress: Callable[[str], None] | None = None, region: str | None = None
    ) -> trainer_check.CheckResult:
        """Run the trainer once in each mode, in separate jobs that do not count in the budget.

        The modes are a trial (`tune`), a full training (`final`) and the gate's job (`evaluate`).
        `progress` is called repeatedly with a line that says what the job waits for, or where it
        runs. `region` is by default the first region whose trials a slot can run. InputError if the
        run was submitted before, the pool can't run the trainer, there is no such region, or the
        trainer fails (with its last output). PoolError if HTCondor is unreachable or refuses a job.
        """
        with run_locked(self._files):
            state = self.status().state
            if state is not RunState.PLANNED:
                raise InputError(
                    f"{str(self.folder)!r} is {state}; the check only works before submission"
                )
            from trialfleet.workflows.control.run import trainer_check

            chosen = trainer_check.choose_region(self._files, region)
            return trainer_check.check(self._files, progress=progress, region=chosen)

    def check_or_remove(
        self, progress: Callable[[str], None] | None = None, region: str | None = None
    ) -> trainer_check.CheckResult:
        """Run the trainer as `check` does. If the check fails, remove the run.

        A run that was submitted before stays. If the trainer fails, the trial's input and output
        files are moved to the folder `.failed-check` next to the run, where they stay until the
        next failed check. If they can't be moved, the run stays.

        Raises:
            InputError: the check fails, for a reason listed at `check`.
            PoolError: HTCondor is unreachable or refuses a job. The run stays.
        """
        from trialfleet.workflows.control.run import trainer_check

        try:
            return self.check(progress, region)
        except trainer_check.TrainerFailsError as error:
            kept = self.folder.with_name(".failed-check")
            shutil.rmtree(kept, ignore_errors=True)
            try:
                error.place.root.rename(kept)
            except OSError:  # another check's files are there; this check's files stay in the run
                raise error from None
            self.remove()
            raise error.after_move(TrialFolder(kept)) from None
        except InputError:
            if self.status().state is RunState.PLANNED:
                self.remove()
            raise

    def submit(self, *, anyway: bool = False) -> str:
        """Submit the run to HTCondor and return the id of DAGMan's job.

        With `anyway`, submit even if the present pool can't run the trials of some region, because
        other slots may join.

        Raises:
            InputError: the run was submitted before, or the pool can't run some region's trials.
            PoolError: HTCondor is unreachable or refuses DAGMan's job.
        """
        with run_locked(self._files):
            state = self.status().state
            if state is not RunState.PLANNED:
                raise InputError(
                    f"{str(self.folder)!r} was submitted before and is {state}; "
                    f"to continue an unfinished run: trialfleet resume {shell_quoted(self.folder)}"
                )
            check_ours(frozen := load_frozen(self._files.study), self._files)
            if not anyway and (why := self.check_pool().hopeless):
                raise InputError(
                    f"{why}. Change the study's resources or accelerator and plan again; or, if "
                    "such slots will join the pool, give --anyway"
                )
            freeze_data(self._files, frozen.study)
            self._ask_for_fleet()
            return repair.submit(self._files)

    def resume(self) -> str:
        """Resume the run without repeating finished trials; return the id of DAGMan's job.

        If the run is under way, only its missing processes and jobs are restored. If the run
        belongs to a day, another attempt at the failed regions is recorded in the journal.

        Raises:
            InputError: the run is done, or no region has anything left to try.
            PoolError: HTCondor is unreachable or refuses a request.
        """
        with run_locked(self._files):
            job = self._resume()
            self._ask_for_fleet()
        reopen_day(self.folder)
        return job

    def _ask_for_fleet(self) -> None:
        """Allow the autoscaler to start nodes, even if the fleet was taken down before."""
        if fleet := self.study.fleet:
            down_note.lift(fleet.full_name)

    def _resume(self) -> str:
        check_ours(load_frozen(self._files.study), self._files)
        queued = job_queue.look_up(self._files)  # the queue says whether the run is over
        if queued.root is None:
            self._check_unfinished(self.status())
            return repair.submit(self._files)
        for fault in faults(self._files, queued.ads, time.time()):
            if fault.is_sure:
                repair.repair(self._files, fault.for_person())
                if not fault.has_parent:
                    break  # the whole run is submitted again
        return job_queue.look_up(self._files).root or queued.root

    def _check_unfinished(self, status: RunStatus) -> None:
        if status.state is RunState.DONE:
            raise InputError(f"{str(self.folder)!r} is done: there is nothing to resume")
        unfinished = [r for r in status.regions if not r.stage.is_good]
        whys = {region.name: region.over for region in unfinished}
        if status.state is RunState.FAILED and all(whys.values()):
            reasons = "\n".join(f"  {name}: {why}" for name, why in whys.items())
            raise InputError(
                f"{str(self.folder)!r} can't be resumed, because no region can continue:\n"
                f"{reasons}\n"
                f"fix the cause, then start a new run: {status.again}\n"
                "(this run keeps its old copy of the trainer and the study)"
            )

    def check_removable(self) -> RunStatus:
        """Return the run's status. InputError if the run may still be under way."""
        status = self.status()
        if not status.ended:
            why = f" ({status.notice})" if status.state is RunState.UNKNOWN else ""
            raise InputError(
                f"{str(self.folder)!r} is {status.state}{why}; a run can only be removed once "
                f"it has ended; to end it: trialfleet stop {shell_quoted(self.folder)}"
            )
        return status

    def remove(self) -> None:
        """Delete the run's folder, but not its published models.

        InputError if the run may still be under way.
        """
        with run_locked(self._files):
            self.check_removable()
            # Renamed first, because a partly deleted run would still look like a run. A killed
            # removal may have left such folders.
            for left in self.folder.parent.glob(".*.removed"):
                shutil.rmtree(left)
            aside, study = self.folder.with_name(f".{self.folder.name}.removed"), self.study.name
            self.folder.rename(aside)
            shutil.rmtree(aside)
            of_study = self.folder.parent
            if (of_study.parent.name, of_study.name) == ("runs", study):
                with suppress(OSError):  # the study has other runs
                    of_study.rmdir()

    def stop(self, progress: Callable[[str], None] | None = None) -> RunStatus:
        """Stop the run: remove its jobs from the queue, then write the report. It can be resumed.

        `progress` is called repeatedly with a line that says what this call waits for. InputError
        if the run isn't under way. PoolError if HTCondor is unreachable, or if jobs are still in
        the queue after two minutes.
        """
        say = progress or say_nothing
        with run_locked(self._files):
            queued = job_queue.look_up(self._files)
            if queued.root is None and self.status().state is not RunState.LOST:
                raise InputError(
                    f"{str(self.folder)!r} is {self.status().state}: there is nothing to stop"
                )
            repair.stop(self._files, say)
        say("writes the report")
        from trialfleet.workflows.control.scripts.report_program import write_report

        # without a report; `trialfleet report` shows the problem
        with suppress(OptimizerError, OSError):
            write_report(self._files, datetime.now(UTC))
        return self.status()

    def status(self) -> RunStatus:
        """Return the run's status.

        If the trial database can't be read, the status has a `notice`.
        """
        return self._reader.read()

    def watch(self, every: float = _POLL_SECONDS) -> Iterator[RunStatus]:
        """Yield the run's status every `every` seconds until the run has ended."""
        while True:
            status = self.status()
            yield status
            if status.ended:
                return
            time.sleep(every)

    def wait(self, progress: Callable[[RunStatus], None] | None = None) -> RunStatus:
        """Wait until the run has ended; return its status. `progress` gets the status every 2 s."""
        for status in self.watch():
            if progress:
                progress(status)
        return status

    def trials(self, region: str | None = None) -> list[Trial]:
        """Return the trials of all regions, or of one region.

        InputError if there is no such region. OptimizerError if the trial database can't be read.
        """
        from trialfleet.workflows.control.run.trainer_check import find_regions

        frozen = load_frozen(self._files.study)
        study, reader = frozen.study, RunTrials(self._files, frozen)
        chosen = find_regions(study, region)
        stored = {each.name: reader.read_region(each.name) for each in chosen}
        unfinished: Mapping[str, Mapping[str, TrialState]] = {}
        now = None
        if not all(trial.state.is_finished() for trials in stored.values() for trial in trials):
            snapshot = self._reader.snapshot()
            unfinished = snapshot.unfinished
            now = time.time() if snapshot.status.state.has_jobs else None
        found = (
            build_trials(
                each.name,
                stored[each.name],
                unfinished.get(each.name, {}),
                self._files.region(each.slug),
                study,
                now,
            )
            for each in chosen
        )
        return [trial for trials in found for trial in trials]

    def cost(self, by: Sequence[str] = ()) -> Costs:
        """Return the cost by region, or by the keys `by`, which `trialfleet.cost` lists.

        InputError if a key is unknown.
        """
        return cost(self.folder, by=by)

    def best(self) -> list[BestSettings]:
        """Return the best settings of each region that has a complete trial.

        OptimizerError if the trial database can't be read.
        """
        snapshot = StatusReader(self._files).snapshot()
        if snapshot.storage_away:
            raise OptimizerError(snapshot.storage_away)
        return [
            BestSettings(
                region=region.name,
                stage=region.stage,
                trial=stored.number,
                value=region.best,
                params=build_trial(region.name, stored, {}).params,
                final=final_metrics(self._files.region(region.slug)),
                published=region.published,
            )
            for region in snapshot.status.regions
            for stored in snapshot.trials[region.name]
            if stored.number == region.best_trial and region.best is not None
        ]
