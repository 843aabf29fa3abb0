"""The scripts `begin` and `end`, which run before and after a region's DAGMan."""

from __future__ import annotations

from trialfleet.files import write_json
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.scripts.full_training_scripts import FinalScripts
from trialfleet.workflows.control.scripts.region_studies import JobRefused
from trialfleet.workflows.facts.dagman.failing_scripts import failing_scripts
from trialfleet.workflows.facts.dagman.files import read_node_status, removal
from trialfleet.workflows.facts.dagman.recovery_files import is_locked, set_aside
from trialfleet.workflows.facts.models.folders import reason_not_latest
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.runs.failed_attempts import log_hint
from trialfleet.workflows.rules.states import done_stage
from trialfleet.workflows.status.attempts.outcome import JOB_REMOVED, JOB_UNSUBMITTED


class RegionScripts:
    """The scripts that run before and after a region's DAGMan."""

    def __init__(self, folder: RunFolder, final: FinalScripts) -> None:
        self._folder, self._final = folder, final

    def begin(self, slug: str) -> Reply:
        """Prepare the region's folder for a new DAGMan.

        If the region is done, the reply keeps the new DAGMan from starting. If another DAGMan runs
        the region, the reply makes the new one wait.
        """
        files = self._folder.region(slug)
        if files.is_done:
            return Reply(EXITS["skip"], f"{slug}: already done")
        if is_locked(files.dag_files):  # a DAGMan submitted by hand, or one that is ending
            return Reply(EXITS["defer"], f"{slug}: another DAGMan runs this region")
        aside = set_aside(files.dag_files)
        files.restart.unlink(missing_ok=True)
        for left in (files.stopped, files.failing):  # its DAG nodes may succeed now
            left.unlink(missing_ok=True)
        self._folder.stopped.unlink(missing_ok=True)  # a person continues the run by hand
        if self._final.without_model() == slug:  # a person retries this region
            self._folder.no_model.unlink()
        what = f", files of the last attempt are in {aside[0]}" if aside else ""
        return Reply(EXITS["done"], f"{slug}: begins{what}")

    def end(self, slug: str, return_code: str, retry: str = "0", most: str = "1") -> Reply:
        """Decide what follows the end of a region's DAGMan: another DAGMan, or the region's end.

        `retry` is the number of retries so far, and `most` is their maximum.
        """
        files, how = self._folder.region(slug), f"its DAGMan ended ({return_code})"
        if files.is_done:
            word = done_stage(
                published=files.published.exists(),
                not_current=reason_not_latest(files.published) is not None,
            )
            return Reply(EXITS["done"], f"{slug}: {word}")
        if files.stopped.exists():
            return Reply(EXITS["done"], f"{slug}: {how}: the region has failed")
        if int(return_code) == JOB_REMOVED and not files.restart.exists():
            by = removal(files.dag_files)  # HTCondor's text, which names the account
            reason = f"its jobs were removed: {by}" if by else "its jobs were removed"
            write_json(files.stopped, {"reason": reason, "removed": True})
            return Reply(EXITS["done"], f"{slug}: {how}: {reason}")
        if int(return_code) == JOB_UNSUBMITTED:  # no RETRY then
            return JobRefused(EXITS["retry"], f"{slug}: HTCondor did not take its DAGMan")
        if int(retry) < int(most):
            return Reply(EXITS["retry"], f"{slug}: {how}: starting another")
        reason = f"{how}, as did {most} before it: {_last_error(files)}"
        write_json(files.stopped, {"reason": reason})
        return Reply(EXITS["done"], f"{slug}: failed: {reason}")


def _last_error(files: RegionFolder) -> str:
    errors = [each.error for each in failing_scripts(files.failing)]
    nodes = read_node_status(files.dag_files.node_status).items()
    details = [f"{name}: {node.details}" for name, node in nodes if node.failed]
    said = next(iter([*errors, *details]), "no reason given")
    return f"{said}{log_hint(str(files.scripts_log))}"
