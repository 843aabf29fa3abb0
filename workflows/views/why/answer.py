"""The answer of `trialfleet why`, with the cause, who is responsible, and the fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class Blame(StrEnum):
    """The person, machine or service that is to blame for a state."""

    NOBODY = "nobody"  # there is no problem, or it passes by itself
    USER = "user"  # the trainer, the study or the data: only this uses up `retries`
    NODE = "node"  # the machine
    SPOT = "spot"  # AWS took the machine back
    AWS = "aws"
    POOL = "pool"  # HTCondor, or this machine
    PERSON = "person"  # a person's choice
    MONEY = "money"


class Kind(StrEnum):
    """The kind of cause, as listed in docs/why.md."""

    # no problem, or it passes by itself
    WELL = "well"
    PLANNED = "planned"
    LANE = "lane"
    TURN = "turn"
    SOON = "soon"
    BUSY = "busy"
    # no slot can run it
    MATCH = "match"
    NO_SLOTS = "no-slots"
    UNWILLING = "unwilling"
    DRAINING = "draining"
    # a person's choice
    STOPPED = "stopped"
    HELD = "held"
    REMOVED = "removed"
    # the manager
    POOL_DOWN = "pool-down"
    SCHEDD_DOWN = "schedd-down"
    DAGMAN_GONE = "dagman-gone"
    DAGMAN_HELD = "dagman-held"
    SERVICE = "service"
    SCRIPT = "script"
    STORAGE = "storage"
    OTHER_MANAGER = "other-manager"
    DISK_FULL = "disk-full"
    EVICTIONS = "evictions"
    STUCK = "stuck"
    FILES = "files"
    CLOSED = "closed"
    # the trainer, its limits and its data
    MEMORY = "memory"
    DISK = "disk"
    TOO_MANY_FILES = "too-many-files"
    TIME = "time"
    INPUT = "input"
    OUTPUT = "output"
    COMMAND = "command"
    CRASH = "crash"
    NO_RESULT = "no-result"
    BAD_RESULT = "bad-result"
    NOT_FINITE = "not-finite"
    REJECTED = "rejected"
    NO_MODEL = "no-model"
    FAILURES = "failures"
    # the budget, the day, the gate
    BUDGET = "budget"
    MONEY = "money"
    DEADLINE = "deadline"
    DATA_MISSING = "data-missing"
    DATA_UNCHANGED = "data-unchanged"
    NOT_PLANNED = "not-planned"
    GATE_KEPT = "gate-kept"
    GATE_FAILED = "gate-failed"
    AWAITS_APPROVAL = "awaits-approval"
    NOT_LATEST = "not-latest"
    PUBLISH = "publish"
    # AWS
    CAPACITY = "capacity"
    THROTTLE = "throttle"
    QUOTA = "quota"
    SPOT_QUOTA = "spot-quota"
    SPOT_PRICE = "spot-price"
    PERMISSION = "permission"
    POLICY = "policy"
    CREDENTIALS = "credentials"
    AWS = "aws"
    PRICE_CAP = "price-cap"
    MAX_NODES = "max-nodes"
    UNFIT_NODES = "unfit-nodes"
    AUTOSCALER = "autoscaler"
    # a node
    BOOTING = "booting"
    BOOT_FAILED = "boot-failed"
    SICK = "sick"
    FAILING_JOBS = "eats-jobs"
    FENCE = "fence"
    LEASE = "lease"
    SPOT = "spot"
    IDLE = "idle"
    LOST = "lost"
    ENDED = "ended"
    NODE = "node"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """The reason why a subject, such as a run, is in its state, and advice.

    `explain` sets `subject`, which rules leave empty.
    """

    kind: Kind
    blame: Blame
    why: str
    advice: str = ""
    command: str = ""
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    subject: str = ""

    def with_evidence(self, *lines: str) -> Answer:
        """Return the same answer with more lines of evidence, each only once."""
        return replace(self, evidence=tuple(dict.fromkeys([*self.evidence, *filter(None, lines)])))

    def lines(self) -> list[str]:
        """Return the lines to show: the reason, the notes and the next step."""
        parts = [f"{self.subject}: {' '.join(self.why.split())}", *self.notes]
        if self.advice or self.command:
            parts.append(f"next: {': '.join(filter(None, (self.advice, self.command)))}")
        return parts

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {"schema": 1, "subject": self.subject, **asdict(self)}
