"""The Optuna studies of a run's regions, and the actions that all scripts of the regions share."""

from __future__ import annotations

from trialfleet import untrusted_files
from trialfleet.files import write_json
from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import (
    Assignment,
    Complete,
    Failed,
    OutOfMoney,
    RegionSettings,
)
from trialfleet.optimizer.sampling.warm_start import PreviousTasks, read_previous
from trialfleet.optimizer.service import Reply
from trialfleet.optimizer.storage import open_storage
from trialfleet.sections import parse_bytes
from trialfleet.wall_clock import WallClock
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.facts.disk_space import lack_of_space
from trialfleet.workflows.facts.jobs.agent_messages import ReportedEnd, read_ended
from trialfleet.workflows.facts.jobs.job_log import last_job
from trialfleet.workflows.facts.jobs.trial_marks import MarkKind, note
from trialfleet.workflows.facts.jobs.unpacking import unpack_result
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS, RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.facts.runs.run_storage import check_not_lost, storage_url, study_name
from trialfleet.workflows.status.attempts.blame_and_retries import JobEnd
from trialfleet.workflows.status.attempts.outcome import (
    JOB_UNSUBMITTED,
    NO_JOB,
    read_outcome,
    settle_attempt,
)
from trialfleet.workflows.study.frozen import FrozenStudy


class RegionStudies:
    """A run's regions, by slug, with their Optuna studies in the run's trial database."""

    def __init__(self, folder: RunFolder, frozen: FrozenStudy) -> None:
        self.folder = folder
        self.frozen = frozen
        self.study = frozen.study
        check_not_lost(folder, frozen.study)
        self.storage = open_storage(storage_url(folder, frozen.study))
        self.regions = {region.slug: region for region in build_graph(frozen.study).regions}
        self.previous = read_previous(folder.previous_results)
        self._opened: dict[str, RegionStudy] = {}
        self._clock = WallClock()

    def forget(self) -> None:
        """Read the studies again at the next use, because another process has written them."""
        self._opened.clear()

    def ask_ahead(self) -> bool:
        """Compute one region's next parameters in advance; return False if no region needs any."""
        return any(study.ask_ahead() for study in self._opened.values())

    def get_study(self, slug: str) -> RegionStudy:
        """Return the Optuna study of a region."""
        if slug not in self._opened:
            region = self.regions[slug]
            self._opened[slug] = RegionStudy(
                self.storage,
                study_name(self.study, self.frozen.run, region.name),
                self.study.region_space(region.name),
                self._settings(region),
                previous=PreviousTasks(self.previous, region.name) if self.previous else None,
                now=lambda: self._clock.now().timestamp(),
            )
        return self._opened[slug]

    def _settings(self, region: RegionGraph) -> RegionSettings:
        budget = self.study.region_budget(region.name)
        return RegionSettings(
            metric=self.study.objective.metric,
            direction=self.study.objective.direction,
            region=region.name,
            seed=self.study.seed,
            trials=budget.trials,
            startup_trials=budget.startup_count,
            max_failures=budget.failures_allowed,
            hours=budget.hours,
            sampler=self.study.sampler,
        )

    def files(
        self,
        slug: str,
        node: str,
        answer: Assignment | None,
        best: TrialFolder | None = None,
        avoid: tuple[str, ...] = (),
    ) -> TrialFiles:
        """Return a writer of the files for an attempt at a trial or a full training.

        `node` is the trial's name, or the DAG node of the full training. `answer` has the
        parameters; None for a lane's job, whose agent asks for them itself. `best` is the folder of
        the full training; None for a trial. `avoid` names the machines on which attempts failed.
        """
        answer = answer or Assignment(number=0, params={}, seed=0)
        order = TrialOrder(
            region=self.regions[slug].name,
            node=node,
            trial=answer.number,
            mode="final" if best else "tune",
            seed=answer.seed,
            params=answer.params,
            avoid=avoid,
            until=self.frozen.day.deadline if self.frozen.day and not best else None,
        )
        place = best or self.folder.region(slug).trial(node)
        return TrialFiles(self.frozen.run, self.study, self.folder, place, order)

    def read_outcome(
        self, place: TrialFolder, code: int
    ) -> tuple[int, Complete | Failed | OutOfMoney]:
        """Unpack an attempt's files; return the attempt's exit code and outcome.

        The exit code is `code` if neither the files nor the job's log tell how the attempt ended.
        """
        code = settle_attempt(place, code, parse_bytes(self.study.resources.disk))
        return code, read_outcome(place, code, self.study.objective.metric, self.frozen.places)

    def read_end(self, place: TrialFolder) -> ReportedEnd | None:
        """Unpack a trial's files and return how the trial ended; None if it has not ended.

        If the job's event log lacks the trial's end, add it there.
        """
        unpack_result(place, place.left, parse_bytes(self.study.resources.disk))
        ended = read_ended(place)
        if ended and (job := last_job(place.log)):
            note_ended(place, job, ended)
        return ended

    def facts(self) -> Facts:
        """Return the facts that may forbid the start of a job: spent money, and the deadline."""
        return Facts(
            out_of_money=spending.read_out_of_money(self.folder),
            deadline=self.frozen.day.deadline if self.frozen.day else None,
            now=self._clock.now(),
        )

    def end_reason(self) -> str | None:
        """Return why no further attempt at any trial may start; None if attempts may start."""
        refused = refusal("attempt", self.facts())
        return refused.reason if refused else None

    def space_problem(self) -> str:
        """Return why the disk is too full to start anything; "" if it has room."""
        return lack_of_space(self.folder.root)

    def clear_stop(self, slug: str) -> None:
        """Delete the record that a region has stopped, because the region continues."""
        self.folder.region(slug).stopped.unlink(missing_ok=True)

    def stop(self, slug: str, reason: str) -> Reply:
        """Record that a region fails for `reason`; return a reply that ends the region's DAG."""
        write_json(self.folder.region(slug).stopped, {"reason": reason})
        return Reply(EXITS["stop"], f"{self.regions[slug].name}: failed: {reason}")


def note_ended(place: TrialFolder, job: str, ended: ReportedEnd) -> None:
    """Write into a job's event log how the trial in `place` ended; `job` is an id such as 12.0."""
    when = untrusted_files.file_stamp(place.ended)[1] or untrusted_files.file_stamp(place.said)[1]
    note(place, job, when / 1e9, MarkKind.ENDS, ended)


class JobRefused(Reply):
    """The reply if HTCondor did not take a job. The job will be submitted again."""


def without_job(node: str, job: JobEnd) -> Reply | None:
    """Return the reply for a DAG node that had no job; None if it had a job.

    If HTCondor refused the job for half a minute, the trial has not failed: when the region's graph
    is submitted again, its DAGMan runs the DAG node again. Otherwise the PRE script prevented the
    job, and the reply depends on the script's exit code `job.asked`.
    """
    if job.code == JOB_UNSUBMITTED:
        return JobRefused(EXITS["retry"], f"{node}: HTCondor did not take its job")
    if job.code != NO_JOB:  # then `asked` may be unknown: DAGMan was restarted after the script
        return None
    if job.asked == EXITS["skip"]:
        return Reply(EXITS["done"])
    return Reply(job.asked, f"{node}: its PRE script failed")
