"""Scripts for a region's full training, and for the end of a region that publishes no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.files import read_record, write_json
from trialfleet.optimizer.budget_and_deadline_rules import refusal
from trialfleet.optimizer.region_types import Assignment, Complete, OutOfMoney
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.plan.input_provenance import list_inputs
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.dagman.failing_scripts import DATA_UNREADABLE, one_line_message
from trialfleet.workflows.facts.jobs.agent_messages import MessageId
from trialfleet.workflows.facts.jobs.ordered_trial import end_place, in_lane
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.facts.runs.failed_attempts import find_log, log_hint, noted_failures
from trialfleet.workflows.facts.runs.region_records import read_reason
from trialfleet.workflows.rules.useless_resume import NO_MODEL
from trialfleet.workflows.status.attempts.blame_and_retries import (
    Attempts,
    JobEnd,
    machines_to_avoid,
)
from trialfleet.workflows.status.attempts.job_record import note_job
from trialfleet.workflows.study.spec import URL_PREFIXES


class FinalScripts:
    """Scripts that order the full training of a region's best settings, and record its end."""

    def __init__(self, studies: RegionStudies) -> None:
        self._studies, self._folder, self._study = studies, studies.folder, studies.study

    def ask(self, slug: str, node: str) -> Reply:
        """Write the files of a separate job for the full training, unless it is done."""
        best, files = self._choose_settings(slug, node), self._folder.region(slug)
        if isinstance(best, Reply):
            return best
        lane = self._read_lane(files.best)
        is_done = lane is not None and lane["done"] and lane["trial"] == best.number
        if is_done or self._is_trained(end_place(files, files.best), best):
            return Reply(EXITS["skip"], f"{node}: already trained in full")
        self._remove_results(files)
        place = files.best
        place.by_lane.unlink(missing_ok=True)
        avoid = machines_to_avoid(self._study, noted_failures(place))
        self._studies.files(slug, node, best, place, avoid).write()
        return Reply(EXITS["done"], f"{node}: the settings of trial {best.number}: {best.params}")

    def _is_trained(self, place: TrialFolder, best: Assignment) -> bool:
        """Return whether the job in `place` has trained the best settings in full.

        After a kill of the POST script or the lane's job, this may not be recorded yet.
        """
        ended = self._studies.read_end(place)
        if ended is None or ended.code:
            return False
        trial = untrusted_files.read_record(place.trial_json, "trial")["trial"]
        _, outcome = self._studies.read_outcome(place, ended.code)
        if trial != best.number or not isinstance(outcome, Complete):
            return False
        note_job(place, self._study, failed=False)
        return untrusted_files.has_files(place.model)

    def ask_in_lane(self, slug: str, node: str, turn: MessageId) -> bool:
        """Order the job that ran a region's last trial to train the best settings in full.

        This job already has the data and the trainer. If the job is lost, the DAG node `best`
        starts a separate job. Return whether the job got an order.
        """
        files, region = self._folder.region(slug), self._studies.regions[slug]
        study = self._studies.get_study(slug)
        is_last = study.refusal() and all(t.state.is_finished() for t in study.trials())
        lane = self._read_lane(files.best)
        if not (is_last and region.publishes) or (lane and (lane["done"] or lane["node"] != node)):
            return False
        try:
            best = self._choose_settings(slug, node)
        except InputError:  # the DAG node `best` reports the error
            return False
        if isinstance(best, Reply):
            return False
        self._remove_results(files)
        place = in_lane(files, files.best, node)
        write_json(place.by_lane, {"node": node, "trial": best.number, "done": False})
        self._studies.files(slug, region.best, best, place).hand_out(turn)
        return True

    def settle_in_lane(self, slug: str, node: str) -> str | None:
        """Record a full training that a lane's job did before its agent was lost.

        Return a phrase about the result, or None if there is nothing to record.
        """
        files = self._folder.region(slug)
        lane = self._read_lane(files.best)
        if lane is None or lane["done"] or lane["node"] != node:
            return None
        ended = self._studies.read_end(in_lane(files, files.best, node))
        return self.tell_in_lane(slug, node, ended.code) if ended else None

    def has_trained(self, slug: str, node: str) -> bool:
        """Return whether the job of the lane's DAG node `node` did the region's full training."""
        lane = self._read_lane(self._folder.region(slug).best)
        return lane is not None and lane["done"] and lane["node"] == node

    def tell_in_lane(self, slug: str, node: str, code: int) -> str:
        """Record the end of a full training in a lane's job; return a phrase about the result."""
        files = self._folder.region(slug)
        place = in_lane(files, files.best, node)
        _, outcome = self._studies.read_outcome(place, code)
        lane = self._read_lane(place)
        if lane and isinstance(outcome, Complete) and untrusted_files.has_files(place.model):
            note_job(place, self._study, failed=False)
            write_json(place.by_lane, {**lane, "done": True})
            return "trained in full"
        place.by_lane.unlink(missing_ok=True)
        untrusted_files.remove(place.ended)
        if isinstance(outcome, Complete):
            return self._stop_without_model(slug).message
        return "the full training is retried in a separate job"

    def _read_lane(self, place: TrialFolder) -> dict[str, Any] | None:
        if not untrusted_files.file_size(place.by_lane):
            return None
        return untrusted_files.read_record(place.by_lane, "node", "trial", "done")

    def _choose_settings(self, slug: str, node: str) -> Assignment | Reply:
        best = self._best_assignment(slug)
        if isinstance(best, Reply):
            return best
        files = self._folder.region(slug)
        if files.published.exists():  # a person ran the region's DAG before
            return Reply(EXITS["skip"], f"{node}: already published")
        if refused := refusal("full training", self._studies.facts()):
            return self._stop_out_of_money(slug, refused.reason)
        if (other := self.without_model()) and other != slug:
            return self._studies.stop(
                slug,
                f"not trained in full, because {other}, with the same trainer, failed: {NO_MODEL}",
            )
        try:
            for place in list_inputs(self._study, self._folder, self._studies.regions[slug].name):
                if not place.startswith(URL_PREFIXES):
                    Path(place).stat()
        except OSError as error:
            raise InputError(f"{DATA_UNREADABLE}: {one_line_message(error)}") from error
        self._studies.clear_stop(slug)
        return best

    def _remove_results(self, files: RegionFolder) -> None:
        for left in (files.verdict, files.best.trained_on, files.gate.ended, files.gate.said):
            untrusted_files.remove(left)

    def tell(self, slug: str, node: str, job: JobEnd) -> Reply:
        """Record how a full training ended. The reply says whether another attempt follows."""
        place = self._folder.region(slug).best
        _, outcome = self._studies.read_outcome(place, job.code)
        note_job(place, self._study, failed=not isinstance(outcome, Complete))
        if isinstance(outcome, Complete) and not untrusted_files.has_files(place.model):
            return self._stop_without_model(slug)
        if isinstance(outcome, Complete):
            return Reply(EXITS["done"], f"{node}: trained in full")
        if isinstance(outcome, OutOfMoney):
            spending.note(self._folder, "final", outcome.error)
            return self._stop_out_of_money(slug, outcome.error)
        if another := Attempts(place, self._study).retry(node, outcome, job):
            return another
        words = f"the full training of the best settings failed: {outcome.error}"
        return self._studies.stop(slug, f"{words}{log_hint(find_log(place))}")

    def conclude(self, slug: str, node: str) -> Reply:
        """Record the best settings as the result of a region whose study publishes no models."""
        best = self._best_assignment(slug)
        if isinstance(best, Reply):
            return best
        self._studies.clear_stop(slug)
        write_json(self._folder.region(slug).tuned, {"trial": best.number, "params": best.params})
        return Reply(EXITS["skip"], f"{node}: tuned: trial {best.number} is the best")

    def _best_assignment(self, slug: str) -> Assignment | Reply:
        study = self._studies.get_study(slug)
        if stopped := study.stopped():
            return self._studies.stop(slug, stopped.reason)
        if best := study.best():
            return best
        over = self._studies.end_reason() or read_reason(self._folder.region(slug).spent)
        why = f"no trial completed, so there are no best settings: {over}"
        return self._studies.stop(slug, why.removesuffix(": "))

    def without_model(self) -> str | None:
        """Return the slug of the region whose full training left no model; None if unknown.

        All regions have the same trainer, so it leaves no model for others either. But if a region
        has published a model, the trainer can leave models, and the result is None.
        """
        if not self._folder.no_model.exists():
            return None
        if any(self._folder.region(slug).published.exists() for slug in self._studies.regions):
            return None
        return str(read_record(self._folder.no_model, "region")["region"])

    def _stop_without_model(self, slug: str) -> Reply:
        write_json(self._folder.no_model, {"region": slug})
        return self._studies.stop(slug, NO_MODEL)

    def _stop_out_of_money(self, slug: str, reason: str) -> Reply:
        return self._studies.stop(slug, f"the best settings are not trained in full: {reason}")
