"""The answer of `trialfleet why` for a DAG node or trial, by the first rule that applies."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trialfleet.workflows.rules.states import TrialState
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.facts import NodeFacts, RegionFacts, RunFacts
from trialfleet.workflows.views.why.failure_advice import advise, find_blame, kind_of_attempt
from trialfleet.workflows.views.why.instance_rules import kind_of_leaving
from trialfleet.workflows.views.why.region_rules import explain_region
from trialfleet.workflows.views.why.run_rules import explain_blocked
from trialfleet.workflows.views.why.waiting_job_rules import explain_no_progress, explain_wait

_GONE = {"SHADOW_EXCEPTION", "JOB_RECONNECT_FAILED", "JOB_DISCONNECTED"}
_BY_HAND = re.compile(r"condor_(vacate|rm|hold)|by user")


def explain_node(run: RunFacts, region: RegionFacts, node: NodeFacts) -> Answer:
    """Return why a DAG node or trial is in its state."""
    if node.is_end and node.state is TrialState.COMPLETE:  # its result is the region's
        return explain_region(run, region)
    return (
        _explain_ended(run, node)
        or _explain_held(node)
        or _explain_no_progress(run, node)
        or _lacks_slots(run, node)
        or _runs(node)
        or _explain_interrupted(run, region, node)
        or _explain_blocked(run, region, node)
        or _waits_again(run, node)
        or _explain_failed_before(run, node)
        or (node.queued and explain_wait(run, node.queued))
        or _explain_not_begun(node)
        or explain_region(run, region)
    )


def _answer(
    node: NodeFacts, kind: Kind, blame: Blame, why: str, advice: str = "", command: str = ""
) -> Answer:
    answer = Answer(kind, blame, why, advice, command)
    return answer.with_evidence(f"see {shlex.quote(node.log)}" if node.log else "")


def _explain_ended(run: RunFacts, node: NodeFacts) -> Answer | None:
    if node.state is TrialState.COMPLETE:
        return _answer(node, Kind.WELL, Blame.NOBODY, "its trial is complete")
    if node.state is TrialState.STOPPED_EARLY:
        why = "its trial was stopped early: its reports predicted that it would not be the best"
        return _answer(node, Kind.WELL, Blame.NOBODY, f"{why}{_prediction_text(node.stopped)}")
    if node.state is TrialState.PRUNED:
        kind = Kind.DEADLINE if "deadline" in node.error else Kind.MONEY
        blame = Blame.PERSON if kind is Kind.DEADLINE else Blame.MONEY
        return _answer(node, kind, blame, f"its trial was abandoned: {node.error}")
    if node.state is TrialState.FAILED:
        why = f"its trial failed permanently: {node.error}"
        return _explain_error(run, node, why)
    return None


def _prediction_text(order: Mapping[str, Any]) -> str:
    try:
        step, end = int(order["step"]), int(order["max_steps"])
        predicted, best = (f"{float(order[name]):.6g}" for name in ("predicted", "best"))
        deviation = f"{float(order['deviation']):.2g}"
    except (LookupError, TypeError, ValueError, OverflowError):
        return ""
    ahead = f"the prediction for its end was {predicted} ± {deviation}; the best is {best}"
    return f": at step {step} of {end} {ahead}"


def _explain_error(run: RunFacts, node: NodeFacts, why: str) -> Answer:
    kind = kind_of_attempt(node.error)
    if node.blame == Blame.NODE:
        machine = node.last.machine if node.last else "the machine"
        sentence = f"{why} (caused by {machine}, so it costs no retry)"
        return _answer(node, Kind.NODE, Blame.NODE, sentence, command="trialfleet pool status")
    advice = advise(run, kind, node.error)
    return _answer(node, kind, find_blame(kind), why, advice, run.frozen.rerun_command(node.region))


def _explain_held(node: NodeFacts) -> Answer | None:
    if not node.held:
        return None
    why = f"its job {node.job} is on hold: {node.held}"
    return _answer(node, Kind.HELD, Blame.PERSON, why, command=f"condor_release {node.job}")


def _explain_no_progress(run: RunFacts, node: NodeFacts) -> Answer | None:
    own = (each for each in run.snapshot.status.job_troubles if each.node == node.in_graph)
    return next((explain_no_progress(trouble) for trouble in own), None)


def _lacks_slots(run: RunFacts, node: NodeFacts) -> Answer | None:
    if not node.lacks_slots or node.queued is None:
        return None
    waiting = explain_wait(run, node.queued)
    return replace(waiting, why=f"{node.gang}: {waiting.why}")


def _runs(node: NodeFacts) -> Answer | None:
    if node.state is not TrialState.RUNNING:
        return None
    where = f" in {node.last.slot}" if node.last else ""
    where = f": {node.gang}" if node.gang else where
    before = f"; {node.attempts} previous attempt(s) failed, the last: {node.error}"
    why = f"no problem: it is running{where}{before if node.attempts else ''}"
    return _answer(node, Kind.WELL, Blame.NOBODY, why)


def _explain_interrupted(run: RunFacts, region: RegionFacts, node: NodeFacts) -> Answer | None:
    if node.state is not TrialState.INTERRUPTED:
        return None
    answer = explain_region(run, region)
    why = f"it was running when its region ended: {answer.why}"
    return _answer(node, answer.kind, answer.blame, why, answer.advice, answer.command)


def _explain_blocked(run: RunFacts, region: RegionFacts, node: NodeFacts) -> Answer | None:
    own = [script for script in region.failing if script.node == node.in_graph]
    return explain_blocked(run, run.snapshot.faults, own)


def _waits_again(run: RunFacts, node: NodeFacts) -> Answer | None:
    last = node.last
    if last is None or not (last.is_over and last.ended_by) or node.queued is None:
        return None
    if _BY_HAND.search(last.reason):
        why = f"a person removed it from {last.machine} ({last.reason}); it continues elsewhere"
        return _answer(node, Kind.REMOVED, Blame.PERSON, why)
    leaving = kind_of_leaving(node.leaving)
    if leaving is Kind.SPOT:
        why = f"AWS took its spot node ({node.leaving}); it continues elsewhere and costs no retry"
        return _explain_retry(run, node, Kind.SPOT, Blame.SPOT, why)
    if leaving is not None:
        why = f"its node {last.machine} evicted it: {node.leaving}; it continues elsewhere"
        return _explain_retry(run, node, leaving, Blame.NODE, why)
    if last.ended_by in _GONE:
        why = f"its node {last.machine} was lost: {last.reason}; it continues and costs no retry"
        return _explain_retry(run, node, Kind.LOST, Blame.NODE, why)
    return None


def _explain_retry(run: RunFacts, node: NodeFacts, kind: Kind, blame: Blame, why: str) -> Answer:
    assert node.queued is not None, "an interrupted job waits"
    waiting = explain_wait(run, node.queued)
    answer = _answer(node, kind, blame, why, waiting.advice, waiting.command)
    return answer.with_evidence(waiting.why, *waiting.evidence)


def _explain_failed_before(run: RunFacts, node: NodeFacts) -> Answer | None:
    if not node.attempts or (node.queued and not node.queued.free):
        return None
    why = f"attempt {node.attempts} failed and will be retried: {node.error}"
    return _explain_error(run, node, why)


def _explain_not_begun(node: NodeFacts) -> Answer | None:
    if node.state is not None:
        return None
    if node.skipped:
        why = f"it was skipped: {node.skipped}"
        kind = Kind.DEADLINE if "deadline" in node.skipped else Kind.BUDGET
        kind = Kind.MONEY if "no money" in node.skipped else kind
        return _answer(node, kind, Blame.NOBODY, why)
    if node.before:
        why = f"it waits for its lane: {node.before} is before it and has not ended"
        return _answer(node, Kind.LANE, Blame.NOBODY, why, command=f"trialfleet why {node.before}")
    return None
