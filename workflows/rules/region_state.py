"""The state of a region, decided from its records, its DAGMan and the queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.workflows.facts.dagman.files import NodeStatus
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.runs.failed_attempts import log_hint
from trialfleet.workflows.facts.runs.region_records import EndFiles, RegionRecords
from trialfleet.workflows.rules.gate_decision import Passed, gate_rule, passed_message
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.study.spec import Study

LEFT_NO_MODEL = "left nothing in model/"  # of a full training; another one would fail alike
NO_MODEL = (
    f"the full training {LEFT_NO_MODEL}: in mode final (`mode` in trial.json, t.mode in "
    "Python) the trainer must write its model into the folder model/ (t.model); to tune without a "
    "model, plan with publish: none"
)
ALIKE = ": all attempts so far failed alike: "
GAVE_UP = f"no trial can succeed{ALIKE}"  # the beginning of an abandoned region's reason
# Causes outside of the run, which has its own copy of trainer and
# study: a data file, a program on the machines, room on the disk.
_OUTSIDE = re.compile(
    r"^(Transfer input files failure|exit code 12[67]\b|.*No space left on device)"
)
BY_STOP = "stopped by trialfleet stop"  # a region's reason; begins with its state
_REMOVED = "ULOG_JOB_ABORTED"  # DAGMan's word for a node whose job was removed


def region_state(
    records: RegionRecords,
    region: RegionGraph,
    queued: QueuedRun | None,
    node: NodeStatus | None,
    run_state: RunState,
) -> RunState:
    """Return the state of a region; `node` is the region's DAG node in the run's graph."""
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


def is_hopeless(reason: str | None) -> bool:
    """Return whether a region ended for a reason that would recur after a resume.

    There are two such reasons: the trainer leaves no model, or all attempts failed alike and the
    cause is inside the run, such as its copy of the trainer.
    """
    text = reason or ""
    why = text.removeprefix(GAVE_UP)
    return LEFT_NO_MODEL in text or (why != text and not _OUTSIDE.match(why))


def final_reason(
    reason: str | None, *, failed: int, allowed: int, finished: int, budget: int, done: int
) -> str | None:
    """Return why a region with no model gets no more trials, even after a resume.

    None if the region may get more trials.

    `reason` is why the region ended early, if it did. `failed` counts the trials that failed for
    good; `allowed` is their limit. `finished` counts ended trials, and `done` the complete trials
    among them; `budget` is the limit of all trials.
    """
    if refused := refusal("region", Facts(failed=failed, failures=allowed)):
        return refused.reason
    if is_hopeless(reason):
        return reason
    if finished >= budget and not done:
        return f"no trial completed, and all {budget} are over"
    return None


def early_end_reason(
    records: RegionRecords, node: NodeStatus | None, state: RunState, *, by_stop: bool, error: str
) -> str | None:
    """Return why a region ended early, from its record or `error`.

    None if the region did not end early, or if the reason is unknown. `node` is the region's DAG
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
    """Return why a region failed, if the region could not record the reason itself.

    `trouble` is why the optimiser's service does not answer, or empty. `log` is the scripts' log.
    """
    if trouble:
        return f"{trouble}{log_hint(str(service_log))}"
    errors = [each.error for each in records.failing]
    details = f"its DAGMan ended: {(node and node.details) or 'no details'}"
    return f"{next(iter(errors), details)}{log_hint(str(log))}"


def region_phase(
    records: RegionRecords,
    region: RegionGraph,
    queued: QueuedRun | None,
    finished: int,
    ends: Callable[[], EndFiles],
    *,
    has_best: bool,
) -> str:
    """Return the phase of a region: waiting, trials, best (full training), gate, publish or done.

    `ends` reads the files of the full training and the gate, and is called only after the trials.
    `has_best` says whether a trial is complete; without a complete trial, no full training follows.
    """
    if records.is_done:
        return "done"

    def has_job(node: str) -> bool:
        return queued is not None and (node in queued.running or node in queued.idle)

    if has_job(region.best):
        return "best"
    if finished >= region.trials and region.publishes and has_best:
        left = ends()
        if not left.is_trained:
            return "best"
        # the gate's job runs or will; a first model, say, is promoted without a gate's job
        measures = not left.is_measured and (has_job(region.gate) or left.gate_begins)
        return "gate" if region.gated and measures else "publish"
    return "trials" if finished or records.is_submitted else "waiting"


def region_gate(records: RegionRecords, study: Study) -> Passed | None:
    """Return the gate's message about a new model that passed a comparison with the current one.

    None if there was no comparison, or if the new model did not pass.
    """
    if study.gate is None or records.verdict is None:
        return None
    return passed_message(gate_rule(study), records.verdict)


def kept_by_gate(records: RegionRecords) -> str | None:
    """Return why the gate kept the current model; None if it didn't, or before publishing."""
    verdict = records.verdict
    return verdict.why if verdict and not verdict.promoted else None
