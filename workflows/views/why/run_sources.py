"""The facts of `trialfleet why` about a run, its regions and DAG nodes, and how they are read.

An unreachable source is a fact, too. Reading changes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.errors import OptimizerError, PoolError
from trialfleet.files import object_or_empty, read_record
from trialfleet.infra.fleet.scaling.last_report import run_report
from trialfleet.infra.pool.connection import connect, start_command
from trialfleet.optimizer.stored_trials import FAILURES, STOPPED, StoredTrial
from trialfleet.workflows.facts.dagman import access_point
from trialfleet.workflows.facts.dagman.files import removal
from trialfleet.workflows.facts.dagman.job_queue import HeldJob, QueuedRun
from trialfleet.workflows.facts.jobs.gang_records import gang_progress
from trialfleet.workflows.facts.jobs.job_log import read_starts
from trialfleet.workflows.facts.jobs.ordered_trial import current_trial, end_place
from trialfleet.workflows.facts.models.folders import LATEST
from trialfleet.workflows.facts.models.history import Change, last_move
from trialfleet.workflows.facts.record_shapes import StoppedRun
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, autoscale_mode
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder, TrialFolder
from trialfleet.workflows.facts.runs.run_storage import other_manager
from trialfleet.workflows.facts.runs.spending import read_out_of_money
from trialfleet.workflows.rules.states import TrialState, trial_state
from trialfleet.workflows.status.status_reader import RunSnapshot, StatusReader
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.status.time_left import first_start
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.views.why.facts import (
    Htcondor,
    NodeFacts,
    Queued,
    RegionFacts,
    RunFacts,
    Scaling,
)
from trialfleet.workflows.views.why.slot_sources import queued_job, word_of_machine

_SKIPPED = re.compile(r"^(?:.* INFO )?(\S+): skipped: (.*)$", re.MULTILINE)
_TAIL = 60_000  # bytes read of the logs of a region's scripts and of the service


class RunFactsReader:
    """Reads the facts about a run.

    The constructor reads the run's status and job queue.
    """

    def __init__(self, folder: Path) -> None:
        self.files = RunFolder(folder)
        self.frozen: FrozenStudy = load_frozen(self.files.study)
        self.snapshot: RunSnapshot = StatusReader(self.files, brief=True).snapshot()
        self._trials, self._queued = self.snapshot.trials, self.snapshot.queued
        self.htcondor = _htcondor(self._queued)

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> RunFacts:
        """Return the facts about the whole run."""
        return RunFacts(
            frozen=self.frozen,
            snapshot=self.snapshot,
            htcondor=self.htcondor,
            pool_up=start_command(),
            stopped_by=_stop_text(self.files),
            owner=self._owner(),
            closed=tuple(_reasons_jobs_wait(self._queued)) if self._queued else (),
            out_of_money=read_out_of_money(self.files),
            scaling=_read_scaling(self.files, self.frozen),
        )

    def _owner(self) -> str:
        if self.snapshot.storage_away:
            return ""
        with suppress(OptimizerError):
            return str(other_manager(self.frozen, self.files) or "")
        return ""

    # -- a region --------------------------------------------------------------------------------

    def region(self, graph: RegionGraph) -> RegionFacts:
        """Return the facts about a region."""
        status = next(r for r in self.snapshot.status.regions if r.slug == graph.slug)
        first = first_start(self._trials[graph.name])
        return RegionFacts(
            **vars(status),
            records=self.snapshot.records[graph.slug],
            hours_spent=(time.time() - first) / 3600 if first else 0.0,
            held=self._held_jobs(graph),
            moved=_last_change(status.published),
            waiting=self._waiting_job(graph, status),
        )

    def _held_jobs(self, graph: RegionGraph) -> tuple[HeldJob, ...]:
        return tuple(job for job in self.snapshot.status.held if job.is_of(graph.slug))

    def _waiting_job(self, graph: RegionGraph, status: RegionStatus) -> Queued | None:
        if self._queued is None or status.running_trials:
            return None
        nodes = {*graph.trial_nodes, *graph.end_nodes} & self._queued.idle
        return self._queued_job(sorted(nodes)[0]) if nodes else None

    def _queued_job(self, node: str) -> Queued | None:
        try:
            return queued_job(self.files, node)
        except PoolError:  # what else is known of the run is still shown
            return None

    # -- a node ----------------------------------------------------------------------------------

    def node(self, graph: RegionGraph, name: str) -> NodeFacts:
        """Return the facts about a trial or a DAG node called `name`.

        The facts about a DAG node include those about the trial that it trains now.
        """
        files = self.files.region(graph.slug)
        end = {graph.best: files.best, graph.gate: files.gate}.get(name)
        at_end = end_place(files, end) if end else None
        is_in_lane = at_end is not None and at_end.is_shared
        node = at_end.node_root.name if at_end and is_in_lane else graph.find_node(name) or name
        unfinished = self.snapshot.unfinished[graph.name]
        current = name if name in graph.end_nodes else current_trial(files, node, unfinished)
        own = current if name == node and current else name
        place = at_end or files.node_folder(own)
        trial = next((t for t in self._trials[graph.name] if _node_name(t) == own), None)
        failures = self._failures(trial, place)
        last: Mapping[str, str] = failures[max(failures, key=int)] if failures else {}
        ad = self._ad(node) if own in {node, current} else None
        is_idle = ad is not None and self._queued is not None and node in self._queued.idle
        stay = next((start for start in reversed(read_starts(place)) if start.slot), None)
        gang, lacks_slots = self._gang(graph, node, place)
        skipped = self._skip_reasons(files)
        return NodeFacts(
            node=name,
            of_job=node,
            region=graph.name,
            is_end=name in graph.end_nodes,
            state=self._state(graph, own, trial, ad, place),
            error=str((trial and trial.user_attrs.get("error")) or last.get("error", "")),
            stopped=trial.user_attrs.get(STOPPED, {}) if trial else {},
            blame=str(last.get("blame", "")),
            attempts=len(failures),
            before=(current or "")
            if own not in {node, current}
            else self._unfinished_parent(graph, node),
            skipped="" if trial else skipped.get(name) or skipped.get(node, ""),
            held=next((job.reason for job in self._held_jobs(graph) if job.node == node), "")
            if ad
            else "",
            job=f"{ad['ClusterId']}.{ad['ProcId']}" if ad else "",
            queued=self._queued_job(node) if lacks_slots or is_idle else None,
            last=stay,
            leaving=word_of_machine(stay.machine) if stay else "",
            log=str(place.log) if place.log.exists() else "",
            gang=gang,
            lacks_slots=lacks_slots,
        )

    def _skip_reasons(self, files: RegionFolder) -> dict[str, str]:
        """Return why trials were skipped, by the name of the trial or DAG node."""
        found: dict[str, str] = {}
        for log in (self.files.service_log, files.scripts_log):
            text = untrusted_files.tail(log, _TAIL)[0].decode(errors="replace")
            found.update(_SKIPPED.findall(text))
        return found

    def _gang(self, graph: RegionGraph, node: str, place: TrialFolder) -> tuple[str, bool]:
        size = self.frozen.study.region_gang(graph.name)
        if size is None or self._queued is None or node not in self._queued.running:
            return "", False
        slots = sum(ad["TrialfleetNode"] == node for ad in self._queued.running_ads)
        return gang_progress(place, slots, size.min)

    def _failures(self, trial: StoredTrial | None, place: TrialFolder) -> dict[str, Any]:
        if trial is not None:
            return dict(trial.user_attrs.get(FAILURES, {}))
        return object_or_empty(
            lambda: untrusted_files.read_json(place.failures, untrusted_files.MOST_NOTES)
        )

    def _state(
        self,
        graph: RegionGraph,
        node: str,
        trial: StoredTrial | None,
        ad: Mapping[str, Any] | None,
        place: TrialFolder,
    ) -> TrialState | None:
        if trial is not None:
            return trial_state(trial, self.snapshot.unfinished[graph.name])
        if ad is not None:
            is_running = bool(self._queued and ad["TrialfleetNode"] in self._queued.running)
            return TrialState.RUNNING if is_running else TrialState.QUEUED
        has_result = untrusted_files.file_size(place.result) > 0
        return TrialState.COMPLETE if has_result and node in graph.end_nodes else None

    def _ad(self, node: str) -> Mapping[str, Any] | None:
        ads = self._queued.ads if self._queued else ()
        return next((ad for ad in ads if ad.get("TrialfleetNode") == node), None)

    def _unfinished_parent(self, graph: RegionGraph, node: str) -> str:
        """Return the first unfinished DAG node that must end before `node`, or "".

        The nodes of a lane run one after another, so the earlier nodes of the same lane must end
        first. Before a full training or a gate, the nodes of all lanes must end.
        """
        ended: dict[str | None, bool] = {}  # by node: whether all its trials so far have ended
        for trial in self._trials[graph.name]:
            at = graph.find_node(_node_name(trial))
            ended[at] = ended.get(at, True) and trial.state.is_finished()
        queued = self._queued.running | self._queued.idle if self._queued else frozenset()
        over = {at for at, is_ended in ended.items() if is_ended and at not in queued}
        lane = next((lane for lane in graph.lanes if node in lane), None)
        before = lane[: lane.index(node)] if lane else graph.trial_nodes
        over.update(self._skip_reasons(self.files.region(graph.slug)))
        return next((one for one in before if one not in over), "")


# -- sources -----------------------------------------------------------------------------------


def _htcondor(queued: QueuedRun | None) -> Htcondor:
    if queued is not None:
        return "answers"
    try:
        connect()
    except PoolError:
        return "pool-down"
    return "schedd-down"


def _stop_text(files: RunFolder) -> str:
    if files.stopped.exists():
        noted = read_record(files.stopped, shape=StoppedRun)
        when = datetime.fromisoformat(noted["time"]).astimezone()
        return f"{noted['by']} stopped its run with trialfleet stop at {when:%Y-%m-%d %H:%M}"
    reason = removal(files.dag_files) or ""
    who = "trialfleet" if reason.startswith("trialfleet") else "a person"
    return f"{who} removed its run's DAGMan: {reason}" if reason else ""


def _reasons_jobs_wait(queued: QueuedRun) -> list[str]:
    try:
        return access_point.reasons_jobs_wait(queued.ads)
    except PoolError:
        return []


def _read_scaling(files: RunFolder, frozen: FrozenStudy) -> Scaling:
    fleet = frozen.study.fleet
    if fleet is None:
        return Scaling(None, wanted=False)
    own = run_report(files.fleet_state, fleet.full_name, frozen.run)
    return Scaling(own, wanted=autoscale_mode(frozen.study) != "off" or own is not None)


# -- files -------------------------------------------------------------------------------------


def _last_change(published: str | None) -> Change | None:
    model = Path(published) if published else None
    return last_move(model.parent / LATEST, model.name) if model else None


def _node_name(trial: StoredTrial) -> str:
    return str(trial.user_attrs.get("node"))
