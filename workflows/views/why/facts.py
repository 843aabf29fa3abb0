"""What is known when a `why` is asked: each witness's word, or that it is away.

Plain data, so that the rules that read it are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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
from trialfleet.workflows.status.missing_modules import how_to_install
from trialfleet.workflows.status.reader import Look
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.study.frozen import FrozenStudy

if TYPE_CHECKING:
    from trialfleet.infra.fleet.commands.status import NodeStatus

Htcondor = Literal["answers", "pool-down", "schedd-down"]
STALE = timedelta(minutes=5)  # an autoscaler that is alive reports at least this often


@dataclass(frozen=True)
class Scaling:
    """The last word of a run's autoscaler.

    Attributes:
        report: its report; None: it never reported.
        wanted: the study has one.
    """

    report: Mapping[str, Any] | None
    wanted: bool

    def lines(self) -> tuple[str, ...]:
        """What keeps it from giving trials a node, in its words."""
        if not self.report:
            return ()
        step = self.report.get("step") or {}
        failing = str(self.report["error"]) if self.report.get("state") == "failing" else ""
        notes = map(str, step.get("notes") or ())
        return tuple(filter(None, (failing, *notes)))

    @property
    def coming(self) -> int:
        """Nodes that AWS has started and that haven't joined yet."""
        step = (self.report or {}).get("step") or {}
        return int((step.get("nodes") or {}).get("coming", 0))

    def silent_since(self, now: datetime) -> datetime | None:
        """Return when it last said anything, if that is too long ago."""
        try:
            at = datetime.fromisoformat(str((self.report or {})["at"]))
        except (KeyError, ValueError):
            return None
        return at if now - at > STALE else None


@dataclass(frozen=True, kw_only=True)
class WitnessedRun:
    """A run: what it was planned with, where it stands, and what else is known of it.

    Attributes:
        frozen: the study that it was planned with.
        look: where it stands, and its trials.
        htcondor: whether the job queue answers.
        pool_up: what starts the pool, where that is down.
        is_supervised: whether a supervisor of this machine mends its DAGMans; None: nobody knows.
        stopped_by: who ended the run before its time, and how.
        owner: the other machine that owns the run, if one does.
        closed: why the access point starts none of its own jobs.
        unpaid: why no more trials (`tune`) or full trainings (`final`) are paid for.
    """

    frozen: FrozenStudy
    look: Look
    htcondor: Htcondor = "answers"
    pool_up: str = "trialfleet pool up"
    is_supervised: bool | None = None
    stopped_by: str = ""
    owner: str = ""
    closed: tuple[str, ...] = ()
    unpaid: Mapping[str, str] = field(default_factory=dict)
    scaling: Scaling = Scaling(None, wanted=False)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def state(self) -> RunState:
        """Where it stands as a whole."""
        return self.look.status.state

    @property
    def called(self) -> str:
        """What tells it from all others: STUDY/RUN-ID."""
        return f"{self.frozen.study.name}/{self.frozen.run}"

    @property
    def name(self) -> str:
        """How a person types it."""
        return shell_quoted(Path(self.look.status.folder))

    @property
    def again(self) -> str:
        """What starts another run once the study is mended, and no region's trainer is at fault."""
        return self.frozen.again_for(None)

    @property
    def watch(self) -> str:
        """What shows how it goes on."""
        return f"trialfleet status {self.name} --watch"

    @property
    def resume(self) -> str:
        """What has it go on."""
        return f"trialfleet resume {self.name}"

    def mending(self, error: str) -> str:
        """What installs the modules that its trainer misses, by the words of an attempt's error."""
        return how_to_install(error, self.frozen.study)


@dataclass(frozen=True, kw_only=True)
class Queued:
    """Trials' jobs that wait for a slot, and what the pool has for one of them.

    Attributes:
        job: the id of that job.
        seconds: since when it waits.
        blocked: it has a slot, whose machine gets the files first that it shares with other jobs.
        prospects: where it can run; None if the collector doesn't answer.
        free: slots that have room for it at this moment and take it.
        draining: why the slots drain that could run it, one such reason; empty: some don't drain.
        own: running jobs of the same run.
        foreign: running jobs of others.
    """

    job: str
    seconds: float = 0.0
    blocked: bool = False
    prospects: Prospects | None = None
    free: int = 0
    draining: str = ""
    own: int = 0
    foreign: int = 0


@dataclass(frozen=True, kw_only=True)
class WitnessedRegion(RegionStatus):
    """A region of a run: where it stands, and what else is known of it.

    Attributes:
        records: what its folder says.
        hours_spent: since its first trial was asked for.
        held: its jobs on hold.
        moved: the change of `latest` that brought its model into force, or took it out of that,
            whichever was last; None: it never was in force, or nothing of that is known.
        waiting: of its jobs that wait, the one that waits longest; None if none does.
        day: what the journal of the study's days has of it, where that is newer than the run.
    """

    records: RegionRecords
    hours_spent: float = 0.0
    held: tuple[HeldJob, ...] = ()
    moved: Change | None = None
    waiting: Queued | None = None
    day: Outcome | None = None


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A node of a region's graph, or a trial that a node of several runs.

    Attributes:
        node: its name.
        of_job: the node whose job trains it; empty: it is that itself.
        region: whose it is.
        is_end: it is the full training, or the gate's measurement, of its region.
        state: of its trial; None while it has none.
        error: why its last attempt failed.
        stopped: the order that it got, if it was stopped early, with the numbers behind it.
        blame: whose fault that was, where that was found out when it ended.
        attempts: how many failed.
        before: the node of its lane that comes before it and isn't over.
        skipped: why it was passed over.
        held: the hold reason of its job, if it is on hold.
        job: the id of its job, while that is in the queue.
        last: the last stay of its job in a slot, by its event log; None: it never had one.
        leaving: what the machine says of itself on which it was: why it drains, or is sick.
        gang: how far its ranks are, where it has several.
        lacks_slots: fewer of them have a slot than the gang needs.
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
        """The node whose job and scripts are meant."""
        return self.of_job or self.node


@dataclass(frozen=True, kw_only=True)
class InstanceFacts:
    """An instance of a fleet.

    Attributes:
        instance: its id.
        node: what `fleet status` says of it; None: AWS lists no such instance, or can't be asked.
        machine: what it says of itself; None: the pool doesn't know it, or can't be asked.
        aws_away: why AWS can't be asked.
        pool_away: why the pool can't be asked.
        fleet_file: the study or file of its fleet.
    """

    instance: str
    node: NodeStatus | None = None
    machine: Machine | None = None
    aws_away: str = ""
    pool_away: str = ""
    fleet_file: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def stage(self) -> str:
        """How far it is, as `fleet status` has it; as the pool has it where AWS isn't asked."""
        if self.node or not self.machine:
            return self.node.stage if self.node else ""
        state = self.machine.state()
        return "joined" if state == "well" else state

    @property
    def why(self) -> str:
        """What `fleet status` says of it."""
        return self.node.why if self.node else ""

    @property
    def state(self) -> str:
        """AWS's word; empty: AWS lists no such instance."""
        return self.node.instance.state if self.node else ""

    @property
    def reason(self) -> str:
        """Why it ended, in AWS's words and by its code."""
        return self.node.instance.ended if self.node else ""

    @property
    def note(self) -> str:
        """Why it drains, in the words of whoever asked for it."""
        return self.machine.drain_explanation if self.machine else ""
