"""The state of a run, decided from the queue, its regions' records and its DAGMans' files."""

from __future__ import annotations

from collections.abc import Collection

from trialfleet.workflows.facts.dagman.files import exit_code, removal
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.region_records import RegionRecords
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.status.run_faults import Fault


def run_state(
    folder: RunFolder,
    queued: QueuedRun | None,
    records: Collection[RegionRecords],
    faults: Collection[Fault],
) -> RunState:
    """Return the state of a run.

    `queued` is None if the queue can't be read. `records` has an element for each region.
    """
    if queued and queued.root:
        return RunState.HELD if queued.root_held else RunState.RUNNING
    if not (folder.dag_files.submit.exists() or any(own.is_submitted for own in records)):
        return RunState.PLANNED
    if any(fault.job is None for fault in faults):
        return RunState.LOST
    if all(own.is_done for own in records):
        return RunState.DONE
    if queued is None and not _ended_by_itself(folder):
        return RunState.UNKNOWN
    is_removed = any(own.stopped is not None and not own.gave_up for own in records)
    return RunState.STOPPED if is_removed or _was_stopped(folder) else RunState.FAILED


def _was_stopped(folder: RunFolder) -> bool:
    whole, *regions = folder.all_dags()
    dags = [whole] if whole.submit.exists() else regions
    return folder.stopped.exists() or any(removal(files) is not None for files in dags)


def _ended_by_itself(folder: RunFolder) -> bool:
    files = folder.dag_files
    return exit_code(files) is not None and not files.lock.exists()
