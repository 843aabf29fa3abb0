"""PRE and POST scripts of the DAG node `gate`, as the optimiser's service executes them."""

from __future__ import annotations

from trialfleet import untrusted_files
from trialfleet.optimizer.region_types import Failed
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.scripts import gate_job
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.jobs.agent_messages import MessageId
from trialfleet.workflows.facts.jobs.ordered_trial import end_place, find_lane, in_lane
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.status.attempts.blame_and_retries import Attempts, JobEnd
from trialfleet.workflows.status.attempts.job_record import note_job


class GateScripts:
    """Scripts that let a job measure the current and the new model, and record the job's end."""

    def __init__(self, studies: RegionStudies) -> None:
        self._studies, self._folder = studies, studies.folder

    def ask(self, slug: str, node: str) -> Reply:
        """Write the files of the gate's job. If nothing has to be measured, skip the DAG node."""
        if why := gate_job.prepare(self._studies.frozen, self._folder, slug, node):
            if why == gate_job.MEASURED:
                files = self._folder.region(slug)
                note_job(end_place(files, files.gate), self._studies.study, failed=False)
            return Reply(EXITS["skip"], f"{node}: skipped: {why}")
        return Reply(EXITS["done"], f"{node}: measures the current model and the new one")

    def ask_in_lane(self, slug: str, node: str, turn: MessageId) -> bool:
        """Order the job that did a region's full training to measure the new and the current model.

        Return whether the job got an order. A gang (several jobs that train one model together)
        gets no order, because only one of its jobs would have work.
        """
        region, frozen, lane = self._studies.regions[slug], self._studies.frozen, (node, turn)
        if region.gangs or not region.gated:
            return False
        return not gate_job.prepare(frozen, self._folder, slug, region.gate, lane)

    def settle_in_lane(self, slug: str, node: str) -> str | None:
        """Record a measurement that a lane's job made before its agent was lost.

        Return a phrase about the result, or None if there is nothing to record.
        """
        files = self._folder.region(slug)
        if find_lane(files, files.gate) != node:
            return None
        ended = self._studies.read_end(in_lane(files, files.gate, node))
        return self.tell_in_lane(slug, node, ended.code) if ended else None

    def tell_in_lane(self, slug: str, node: str, code: int) -> str:
        """Record the end of a measurement in a lane's job; return a phrase about the result."""
        files = self._folder.region(slug)
        place = in_lane(files, files.gate, node)
        outcome = gate_job.outcome_of_measurement(self._studies.frozen, place, code)
        untrusted_files.remove(place.given)
        if outcome is None:
            note_job(place, self._studies.study, failed=False)
            return "measured"
        for left in (place.by_lane, place.ended):
            untrusted_files.remove(left)
        return f"the models are measured in a separate job: {outcome.error}"

    def tell(self, slug: str, node: str, job: JobEnd) -> Reply:
        """Record how a measurement ended. The reply says whether another attempt follows."""
        files, study = self._folder.region(slug), self._studies.study
        outcome = gate_job.outcome_of_measurement(self._studies.frozen, files.gate, job.code)
        note_job(files.gate, study, failed=outcome is not None)
        if outcome is None:
            return Reply(EXITS["done"], f"{node}: measured")
        attempts = Attempts(files.gate, study)
        if isinstance(outcome, Failed) and (another := attempts.retry(node, outcome, job)):
            return another
        why = gate_job.keep(self._studies.frozen, files, outcome)
        return Reply(EXITS["done"], f"{node}: the current model is kept: {why}")
