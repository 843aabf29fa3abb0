"""What the nodes behind a region's trials ask and tell: a full training, or the end without one."""

from __future__ import annotations

from pathlib import Path

from trialfleet import job_files
from trialfleet.errors import InputError
from trialfleet.files import read_record, write_json
from trialfleet.optimizer.region_types import Assignment
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.attempts import node_faults
from trialfleet.workflows.attempts.job_record import note_job
from trialfleet.workflows.attempts.outcome import Complete, Unpaid
from trialfleet.workflows.attempts.retries import Attempts
from trialfleet.workflows.dagman.failing import DATA_UNREADABLE, words_of
from trialfleet.workflows.plan.graph import EXITS
from trialfleet.workflows.plan.inputs import inputs_of
from trialfleet.workflows.scripts.region_studies import RegionStudies, without_job
from trialfleet.workflows.status import spending
from trialfleet.workflows.status.causes import log_of, note_final_failure, noted_failures, see
from trialfleet.workflows.status.region_state import NO_MODEL, noted
from trialfleet.workflows.study.spec import URL_PREFIXES


class FinalScripts:
    """Handing out the best settings of a region, and judging their full training."""

    def __init__(self, studies: RegionStudies) -> None:
        self._studies, self._folder, self._study = studies, studies.folder, studies.study

    def ask(self, slug: str, node: str) -> Reply:
        """Hand out the best settings."""
        best = self._best_of(slug)
        if isinstance(best, Reply):
            return best
        files = self._folder.region(slug)
        if files.published.exists():  # the region's DAG was run by itself before
            return Reply(EXITS["skip"], f"{node}: published already")
        if unpaid := spending.refusal(self._folder, "final"):
            return self._stop_unpaid(slug, unpaid)
        if (other := self.without_model()) and other != slug:
            return self._studies.stop(
                slug, f"not trained in full, as {other} with the same trainer: {NO_MODEL}"
            )
        try:
            self._look_for_data(slug)
        except OSError as error:
            raise InputError(f"{DATA_UNREADABLE}: {words_of(error)}") from error
        self._studies.go_on(slug)
        files.verdict.unlink(missing_ok=True)  # of a training before this one
        files.best.trained_on.unlink(missing_ok=True)
        avoid = node_faults.to_avoid(self._study, noted_failures(files.best))
        self._studies.write(slug, node, files.best, best, "final", avoid)
        return Reply(EXITS["done"], f"{node}: the settings of trial {best.number}: {best.params}")

    def tell(
        self, slug: str, node: str, return_code: str, retry: str, most: str, asked: str
    ) -> Reply:
        """Judge an attempt at the full training, say whether to try again."""
        if no_job := without_job(node, int(return_code), int(asked)):
            return no_job
        place = self._folder.region(slug).best
        outcome = self._studies.outcome_of(place, int(return_code))
        note_job(place, self._study, failed=not isinstance(outcome, Complete))
        if isinstance(outcome, Complete) and not job_files.has_files(place.model):
            write_json(self._folder.no_model, {"region": slug})
            return self._studies.stop(slug, NO_MODEL)
        if isinstance(outcome, Complete):
            return Reply(EXITS["done"], f"{node}: trained in full")
        if isinstance(outcome, Unpaid):
            spending.note(self._folder, "final", outcome.error)
            return self._stop_unpaid(slug, outcome.error)
        attempts = Attempts(place, self._study)
        outcome = attempts.with_machine(outcome, noted_failures(place))
        noted = note_final_failure(
            place, node, attempt=int(retry) + 1, error=outcome.error, **attempts.kept(outcome)
        )
        if not attempts.over(outcome, noted, retry, most):
            return attempts.try_again(node, outcome, noted)
        words = f"the full training of the best settings failed: {outcome.error}"
        return self._studies.stop(slug, f"{words}{see(log_of(place))}")

    def conclude(self, slug: str, node: str) -> Reply:
        """End a region whose study publishes nothing."""
        best = self._best_of(slug)
        if isinstance(best, Reply):
            return best
        self._studies.go_on(slug)
        write_json(self._folder.region(slug).tuned, {"trial": best.number, "params": best.params})
        return Reply(EXITS["skip"], f"{node}: tuned: trial {best.number} is the best")

    def _best_of(self, slug: str) -> Assignment | Reply:
        """A region's best settings, or the answer where there are none to go on with."""
        study = self._studies.of(slug)
        if stopped := study.stopped():
            return self._studies.stop(slug, stopped.reason)
        if best := study.best():
            return best
        over = self._studies.over() or noted(self._folder.region(slug).spent, "reason") or ""
        why = f"no trial completed, so there are no best settings: {over}"
        return self._studies.stop(slug, why.removesuffix(": "))

    def without_model(self) -> str | None:
        """The region whose full training left no model, where no region of the run has one.

        All have the same trainer: another's full training would end without a model, too.
        """
        if not self._folder.no_model.exists():
            return None
        if any(self._folder.region(slug).published.exists() for slug in self._studies.regions):
            return None
        return str(read_record(self._folder.no_model, "region")["region"])

    def _look_for_data(self, slug: str) -> None:
        """Look for the files of a region's data.

        Raises:
            OSError: one can't be found.
        """
        for place in inputs_of(self._study, self._folder, self._studies.regions[slug].name):
            if not place.startswith(URL_PREFIXES):
                Path(place).stat()

    def _stop_unpaid(self, slug: str, reason: str) -> Reply:
        return self._studies.stop(slug, f"the best settings are not trained in full: {reason}")
