"""Where one region of a run stands, by its files, its DAGMan and the queue."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet import job_files
from trialfleet.files import read_record
from trialfleet.optimizer.may_begin import Facts, refusal
from trialfleet.workflows.dagman.failing import failing_scripts, service_trouble
from trialfleet.workflows.dagman.files import NodeStatus
from trialfleet.workflows.dagman.job_queue import QueuedRun
from trialfleet.workflows.jobs.agent_words import read_order
from trialfleet.workflows.jobs.current import current_trial
from trialfleet.workflows.models.gate_decision import Passed, Verdict, passed_of, rule_of
from trialfleet.workflows.plan.folder import RegionFolder, RunFolder
from trialfleet.workflows.plan.graph import RegionGraph
from trialfleet.workflows.record_shapes import GateVerdict, Result, Stopped
from trialfleet.workflows.status.causes import see
from trialfleet.workflows.status.states import RunState, TrialState, unfinished_state

if TYPE_CHECKING:
    from trialfleet.optimizer.stored_trials import StoredTrial
    from trialfleet.workflows.study.spec import Study

LEFT_NO_MODEL = "left nothing in model/"  # a full training: another would leave nothing, too
NO_MODEL = (
    f"the full training {LEFT_NO_MODEL}: in mode final (`mode` in trial.json, t.mode in "
    "Python) the trainer must write its model into the folder model/ (t.model); to tune without a "
    "model, plan with publish: none"
)
ALIKE = ": all attempts so far failed alike: "
GAVE_UP = f"no trial can succeed{ALIKE}"  # how the reason of a region begins that was given up
# What a person mends, or what passes, outside of the run, which has its own copy of trainer and
# study: a data file, a program on the machines, room on the disk.
_OUTSIDE = re.compile(
    r"^(Transfer input files failure|exit code 12[67]\b|.*No space left on device)"
)
BY_STOP = "stopped by trialfleet stop"  # a region's reason; begins with its state
_REMOVED = "ULOG_JOB_ABORTED"  # DAGMan's word for a node whose job somebody removed


def unfinished_of(
    files: RegionFolder,
    region: RegionGraph,
    trials: list[StoredTrial],
    state: RunState,
    queued: QueuedRun | None,
) -> dict[str, TrialState]:
    """Return the words for a region's trials that are asked and not told, by their names."""
    running = queued.running if queued else frozenset()
    held = {job.node for job in queued.held} if queued else set()
    names = [str(trial.user_attrs.get("node")) for trial in trials if not trial.state.is_finished()]
    found = {}
    for name in names:
        node = region.node_of(name) or name
        is_current = current_trial(files, node, names) == name
        found[name] = unfinished_state(
            state, running=is_current and node in running, held=is_current and node in held
        )
    return found


def jobs_without_trial(
    files: RegionFolder,
    region: RegionGraph,
    unfinished: Iterable[str],
    queued: QueuedRun | None,
) -> int:
    """Return how many of a region's lanes wait for slots to ask there what they are to train."""
    if queued is None:
        return 0
    waiting = queued.idle.intersection(region.trial_nodes)
    if region.gangs:  # one may lack slots while some of its jobs have theirs
        some = queued.running.intersection(region.trial_nodes)
        orders = ((node, read_order(files.trial(node))) for node in some)
        waiting |= {node for node, order in orders if order and order.trial is None}
    return len(waiting - {region.node_of(name) for name in unfinished})


def state_of(
    files: RegionFolder,
    region: RegionGraph,
    queued: QueuedRun | None,
    node: NodeStatus | None,
    run_state: RunState,
) -> RunState:
    """Return where a region stands in a run that stands at `run_state`."""
    if files.is_done:
        return RunState.DONE
    has_ended = run_state in {RunState.STOPPED, RunState.FAILED}
    if queued and region.slug in queued.regions and not has_ended:  # its DAGMan goes a bit later
        return RunState.RUNNING
    if files.stopped.exists():
        return RunState.FAILED if gave_up(files) else RunState.STOPPED
    if node and node.failed:
        return RunState.STOPPED if _was_removed(node) else RunState.FAILED
    return RunState.WAITING if run_state is RunState.RUNNING else run_state


def is_vain(reason: str | None) -> bool:
    """Whether a region is over for what is as it was when the run goes on.

    All of its attempts failed alike, or its trainer leaves no model.
    """
    text = reason or ""
    why = text.removeprefix(GAVE_UP)
    return LEFT_NO_MODEL in text or (why != text and not _OUTSIDE.match(why))


def why_over(
    reason: str | None, *, failed: int, allowed: int, finished: int, budget: int, done: int
) -> str | None:
    """Return why a region that has no model gets no further trial, however often its run goes on.

    Args:
        reason: why it ended early, if it did.
        failed: trials that failed for good.
        allowed: how many may.
        finished: trials that are over.
        budget: trials that it may run.
        done: trials that completed.
    """
    if refused := refusal("region", Facts(failed=failed, failures=allowed)):
        return refused.reason
    if is_vain(reason):
        return reason
    if finished >= budget and not done:
        return f"no trial completed, and all {budget} are over"
    return None


def gave_up(files: RegionFolder) -> bool:
    """Return whether a region failed by itself; its DAGMan was not removed."""
    return files.stopped.exists() and not read_record(files.stopped, shape=Stopped).get("removed")


def _was_removed(node: NodeStatus) -> bool:
    """Return whether a region's DAGMan failed because somebody removed it, or the run's."""
    return node.was_cut_off or _REMOVED in node.details


def reason_of(
    files: RegionFolder, node: NodeStatus | None, state: RunState, run: RunFolder
) -> str | None:
    """Return why a region ended early: its own words, else the last error of its scripts.

    Args:
        files: the region's.
        node: of the region in the whole run's graph.
        state: where the region stands.
        run: the run's files.
    """
    if state not in {RunState.FAILED, RunState.STOPPED}:
        return None
    if files.stopped.exists():
        return noted(files.stopped, "reason")
    if state is RunState.FAILED:
        return _last_error(files, node, run)
    if run.stopped.exists():
        return BY_STOP
    if node and node.failed:
        return "the run's jobs were removed" if node.was_cut_off else "its jobs were removed"
    return None


def _last_error(files: RegionFolder, node: NodeStatus | None, run: RunFolder) -> str:
    """Return why a region has failed that could not note it itself."""
    if trouble := service_trouble(run):
        return f"{trouble}{see(str(run.service_log))}"
    errors = [each.error for each in failing_scripts(files.failing)]
    details = f"its DAGMan ended: {(node and node.details) or 'no details'}"
    return f"{next(iter(errors), details)}{see(str(files.scripts_log))}"


def phase_of(
    files: RegionFolder, region: RegionGraph, queued: QueuedRun | None, finished: int
) -> str:
    """Return what a region is at: waiting, trials, best, gate, publish or done."""
    if files.is_done:
        return "done"
    if queued and region.best in queued.running | queued.idle:
        return "best"
    if finished >= region.trials and region.publishes:
        if not (job_files.size_of(files.best.result) and _left_a_model(files)):
            return "best"
        return "gate" if region.gated and _is_measured_now(files, region, queued) else "publish"
    return "trials" if finished or files.dag_files.submit.exists() else "waiting"


def _left_a_model(files: RegionFolder) -> bool:
    return files.published.exists() or job_files.has_files(files.best.model)


def _is_measured_now(files: RegionFolder, region: RegionGraph, queued: QueuedRun | None) -> bool:
    """Whether the gate's job goes on or is about to: a first model, say, is promoted without."""
    if files.verdict.exists() or job_files.size_of(files.gate.result):
        return False
    is_queued = queued is not None and region.gate in queued.running | queued.idle
    return is_queued or files.gate.trial_json.exists()


def gate_of(files: RegionFolder, study: Study) -> Passed | None:
    """Return what the gate found of a published model that it let pass, past a champion."""
    if study.gate is None or not files.published.exists() or not files.verdict.exists():
        return None
    return passed_of(rule_of(study), Verdict.read(read_record(files.verdict, shape=GateVerdict)))


def noted(path: Path, key: str) -> str | None:
    """Return what is noted in a JSON file under a key; None where nothing is.

    Raises:
        InputError: the file is damaged.
    """
    found = read_record(path).get(key) if path.exists() else None
    return None if found is None else str(found)


def final_metrics(files: RegionFolder) -> dict[str, float] | None:
    """Return what a region's full training reported; None until its model is published.

    Raises:
        InputError: the file of its result is damaged.
    """
    if not files.published.exists():
        return None
    found = job_files.read_record(
        files.best.result, "metrics", shape=Result, most=job_files.MOST_RESULT
    )
    metrics: dict[str, float] = found["metrics"]
    return metrics
