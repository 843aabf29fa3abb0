"""The state and stage of a region, and the reason if it ended early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trialfleet.workflows.facts.dagman.files import NodeStatus
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.runs.failed_attempts import log_hint
from trialfleet.workflows.facts.runs.region_records import EndFiles, RegionRecords
from trialfleet.workflows.rules.states import RunState, Stage, done_stage

BY_STOP = "stopped by trialfleet stop"  # a region's reason; its first word is the region's state
_REMOVED = "ULOG_JOB_ABORTED"  # DAGMan's word for a node whose job was removed


def region_state(
    records: RegionRecords,
    region: RegionGraph,
    queued: QueuedRun | None,
    node: NodeStatus | None,
    run_state: RunState,
) -> RunState:
    """Return the state of a region, whose DAG node in the run's graph is `node`."""
    if records.is_done:
        return RunState.DONE
    has_ended = run_state in {RunState.STOPPED, RunState.FAILED}
    if queued and region.slug in queued.regions and not has_ended:  # its DAGMan ends later
        return RunState.RUNNING
    if records.stopped is not None:
        return RunState.FAILED if records.gave_up else RunState.STOPPED
    if node and node.failed:  # its DAGMan, or the run's, was removed, or the region failed
        was_removed = node.was_cut_off or _REMOVED in node.details
        return RunState.STOPPED if was_removed else RunState.FAILED
    return RunState.WAITING if run_state is RunState.RUNNING else run_state


def early_end_reason(
    records: RegionRecords, node: NodeStatus | None, state: RunState, *, by_stop: bool, error: str
) -> str | None:
    """Return why a region ended early.

    Return None if it did not end early, or if the reason is unknown. `node` is the region's DAG
    node in the run's graph. `by_stop` is True after `trialfleet stop`. `error` is the result of
    `last_error`.
    """
    if state not in {RunState.FAILED, RunState.STOPPED}:
        return None
    if records.stopped is not None:
        reason = records.stopped.get("reason")
        return None if reason is None else str(reason)
    if state is RunState.FAILED:
        return error
    if by_stop:
        return BY_STOP
    if node and node.failed:
        return "the run's jobs were removed" if node.was_cut_off else "its jobs were removed"
    return None


def last_error(
    records: RegionRecords, node: NodeStatus | None, log: Path, trouble: str, service_log: Path
) -> str:
    """Return why a region failed, for a region that could not record the reason itself.

    `trouble` is why the optimiser's service does not answer, or "" if it answers. `log` is the log
    of the region's scripts, and `service_log` is that of the service.
    """
    if trouble:
        return f"{trouble}{log_hint(str(service_log))}"
    errors = [each.error for each in records.failing]
    details = f"its DAGMan ended: {(node and node.details) or 'no details'}"
    return f"{next(iter(errors), details)}{log_hint(str(log))}"


def region_stage(
    records: RegionRecords,
    region: RegionGraph,
    queued: QueuedRun | None,
    state: RunState,
    finished: int,
    ends: Callable[[], EndFiles],
    *,
    has_best: bool,
    not_current: bool = False,
) -> Stage:
    """Return the stage of a region whose state is `state`.

    `finished` is the number of ended trials. `has_best` says whether any trial is complete, because
    otherwise no full training follows. `ends` reads the files of the full training and the gate,
    and is called only after all trials have ended. `not_current` says whether another model than
    the region's is in use.
    """
    if state is RunState.DONE:
        return done_stage(published=records.published is not None, not_current=not_current)
    if state is not RunState.RUNNING:
        return Stage(state.value)

    def has_job(node: str) -> bool:
        return queued is not None and (node in queued.running or node in queued.idle)

    if has_job(region.best):
        return Stage.TRAINING
    if finished >= region.trials and region.publishes and has_best:
        left = ends()
        if not left.is_trained:
            return Stage.TRAINING
        # the gate's job runs or will run; a region's first model, for example, needs no such job
        measures = not left.is_measured and (has_job(region.gate) or left.gate_begins)
        return Stage.GATING if region.gated and measures else Stage.PUBLISHING
    return Stage.TUNING if finished or records.is_submitted else Stage.WAITING
