"""The facts from which `trialfleet why` derives its answer, as plain data.

The rules that choose the answer are pure functions of these facts. So the rules read no source.
If a source is unreachable, this is a fact, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trialfleet.files import shell_quoted
from trialfleet.infra.pool.machines import Machine
from trialfleet.workflows.facts.dagman.job_queue import HeldJob
from trialfleet.workflows.facts.jobs.executions import Execution
from trialfleet.workflows.facts.journal.journal import Outcome
from trialfleet.workflows.facts.models.history import Change
from trialfleet.workflows.facts.runs.region_records import RegionRecords
from trialfleet.workflows.rules.slot_matching import Prospects
from trialfleet.workflows.rules.states import RunState, TrialState
from trialfleet.workflows.status.status_reader import RunSnapshot
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.study.frozen import FrozenStudy

if TYPE_CHECKING:
    from trialfleet.infra.fleet.commands.status import NodeStatus

Htcondor = Literal["answers", "pool-down", "schedd-down"]


@dataclass(frozen=True)
class Scaling:
    """The state of a run's autoscaler (the process that starts and ends EC2 nodes).

    Attributes:
        report: the autoscaler's last report, or None.
        wanted: whether the run should have an autoscaler: its study has autoscaling on, or an
            autoscaler has reported on the run.
    """

    report: Mapping[str, Any] | None
    wanted: bool

    def lines(self) -> tuple[str, ...]:
        """Return the reasons that the autoscaler reported for starting no node."""
        if not self.report:
            return ()
        step = self.report.get("step") or {}
        failing = str(self.report["error"]) if self.report.get("state") == "failing" else ""
        notes = map(str, step.get("notes") or ())
        return tuple(filter(None, (failing, *notes)))

    @property
    def booting_nodes(self) -> int:
        """The number of nodes that were started, but haven't joined the pool yet."""
        step = (self.report or {}).get("step") or {}
        return int((step.get("nodes") or {}).get("coming", 0))


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run.

    Attributes:
        pool_up: the command that starts the pool.
        stopped_by: who stopped the run, and how, or "".
        owner: the other manager that is known to own the run, or "".
        closed: why no jobs, such as DAGMan, start on the access point itself, or empty if they do.
        out_of_money: why no more money may be spent, or empty if money is left. The key is "tune"
            if full trainings may still spend money, otherwise "final".
    """

    frozen: FrozenStudy
    snapshot: RunSnapshot
    htcondor: Htcondor = "answers"
    pool_up: str = "trialfleet pool up"
    stopped_by: str = ""
    owner: str = ""
    closed: tuple[str, ...] = ()
    out_of_money: Mapping[str, str] = field(default_factory=dict)
    scaling: Scaling = Scaling(None, wanted=False)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def state(self) -> RunState:
        """The state of the run."""
        return self.snapshot.status.state

    @property
    def name(self) -> str:
        """The run's folder, quoted for a shell command."""
        return shell_quoted(Path(self.snapshot.status.folder))

    @property
    def rerun_command(self) -> str:
        """The command for a new run, for use after the study is fixed."""
        return self.frozen.rerun_command(None)

    @property
    def watch(self) -> str:
        """The command that shows the run's progress."""
        return f"trialfleet status {self.name} --watch"

    @property
    def resume(self) -> str:
        """The command that resumes the run."""
        return f"trialfleet resume {self.name}"


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A waiting job, and the slots of the pool that could run it.

    Attributes:
        seconds: how long the job has waited.
        blocked: whether the job has a slot, but waits for its common files.
        prospects: how many slots could run the job. None if `blocked`, or if HTCondor doesn't
            answer.
        free: the number of free slots that accept the job.
        has_negotiator: whether the pool has the daemon that assigns jobs to slots.
        draining: the reason why all suitable slots drain (take no new jobs), or "" if not all do.
        own: the number of running jobs of the same run.
        foreign: the number of running jobs of other runs and users.
    """

    job: str
    seconds: float = 0.0
    blocked: bool = False
    prospects: Prospects | None = None
    free: int = 0
    has_negotiator: bool = True
    draining: str = ""
    own: int = 0
    foreign: int = 0


@dataclass(frozen=True, kw_only=True)
class RegionFacts(RegionStatus):
    """The facts of a region of a run.

    Attributes:
        hours_spent: the hours since the optimiser chose the first trial.
        moved: the last known change that made this run's model current or replaced it, or None.
        waiting: one waiting job of the region. None while trials run, or if no waiting job is
            known.
        day: the region's newest outcome in the journal of daily runs, if no run led to it and if
            its day is this run's day or a later one. Otherwise None.
    """

    records: RegionRecords
    hours_spent: float = 0.0
    held: tuple[HeldJob, ...] = ()
    moved: Change | None = None
    waiting: Queued | None = None
    day: Outcome | None = None


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """The facts of a DAG node, or of one trial of a DAG node that runs several.

    Attributes:
        of_job: the DAG node whose job trains the trial. "" means `node`.
        is_end: whether `node` is the region's full training or gate.
        state: the state of the trial. None if there is no trial, no queued job and no result.
        error: why the last attempt at the trial failed.
        stopped: the numbers of the prediction that led to an early stop, or empty.
        attempts: the number of failed attempts.
        before: the unfinished DAG node or trial that must end before this one, or "".
        skipped: why the DAG node or trial was skipped, or "".
        held: why the job is on hold, or "".
        last: the last execution of the job, or None if the job never had a slot.
        leaving: why the machine of the last execution takes no trials, as the machine reports, or
            "".
        gang: the progress of a gang (a training on several slots) in words, or "".
        lacks_slots: whether the gang has fewer slots than it needs.
    """

    node: str
    of_job: str = ""
    region: str = ""
    is_end: bool = False
    state: TrialState | None = None
    error: str = ""
    stopped: Mapping[str, Any] = field(default_factory=dict)
    blame: str = ""
    attempts: int = 0
    before: str = ""
    skipped: str = ""
    held: str = ""
    job: str = ""
    queued: Queued | None = None
    last: Execution | None = None
    leaving: str = ""
    log: str = ""
    gang: str = ""
    lacks_slots: bool = False

    @property
    def in_graph(self) -> str:
        """The name of the DAG node that has the job and the scripts."""
        return self.of_job or self.node


@dataclass(frozen=True, kw_only=True)
class InstanceFacts:
    """An EC2 instance of a fleet.

    Attributes:
        node: what `trialfleet fleet status` shows about the instance. None if AWS is unreachable or
            doesn't list it.
        machine: the instance as a machine of the pool. None if the pool doesn't answer or doesn't
            list it.
        aws_away: why AWS is unreachable, or was not asked.
        pool_away: why the pool is unreachable.
        fleet_file: the file with the fleet's settings (a study file or fleet.yaml), or "" if no
            fleet is known.
    """

    node: NodeStatus | None = None
    machine: Machine | None = None
    aws_away: str = ""
    pool_away: str = ""
    fleet_file: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def stage(self) -> str:
        """The stage that `trialfleet fleet status` shows or, if unknown, the state in the pool.

        The text is "" if both are unknown.
        """
        if self.node or not self.machine:
            return self.node.stage if self.node else ""
        state = self.machine.state()
        return "joined" if state == "well" else state

    @property
    def stage_reason(self) -> str:
        """The text of `trialfleet fleet status` about the instance's stage."""
        return self.node.reason if self.node else ""

    @property
    def state(self) -> str:
        """The instance's state in AWS, or "" if AWS doesn't list it."""
        return self.node.instance.state if self.node else ""

    @property
    def reason(self) -> str:
        """The reason why the instance ended: AWS's text and code."""
        return self.node.instance.ended if self.node else ""

    @property
    def note(self) -> str:
        """The reason why the instance drains, as recorded in the pool."""
        return self.machine.drain_explanation if self.machine else ""
