"""The answer to a `why`: what the cause is, in a line, who is to see to it, and what mends it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class Blame(StrEnum):
    """Whose it is."""

    NOBODY = "nobody"  # all is well, or it passes by itself
    USER = "user"  # the trainer, the study or the data: only this uses up `retries`
    NODE = "node"  # the machine that it ran on
    SPOT = "spot"  # AWS took the machine back
    AWS = "aws"
    POOL = "pool"  # HTCondor, or this machine
    PERSON = "person"  # somebody wanted it so
    MONEY = "money"


class Kind(StrEnum):
    """What the cause is; docs/why.md has a line for each."""

    # all is well, or passes by itself
    WELL = "well"
    PLANNED = "planned"
    LANE = "lane"
    TURN = "turn"
    SOON = "soon"
    BUSY = "busy"
    # nothing can run it
    MATCH = "match"
    NO_SLOTS = "no-slots"
    UNWILLING = "unwilling"
    DRAINING = "draining"
    # a person wanted it so
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
    EATS_JOBS = "eats-jobs"
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
    """Why something stands where it stands.

    Attributes:
        subject: what was asked about, by its name.
        kind: what the cause is.
        blame: whose it is.
        why: in one line.
        advice: what to do first, in words; empty where the command is enough, or nothing is to do.
        command: what to type; empty where there is nothing to type.
        evidence: what says so, a line each.
        notes: what else is worth to know, a line each.
    """

    subject: str
    kind: Kind
    blame: Blame
    why: str
    advice: str = ""
    command: str = ""
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def with_evidence(self, *lines: str) -> Answer:
        """The same with more that says so; each line once."""
        return replace(self, evidence=tuple(dict.fromkeys([*self.evidence, *filter(None, lines)])))

    def of(self, subject: str) -> Answer:
        """The same answer, for another subject that it explains."""
        return replace(self, subject=subject)

    def lines(self) -> list[str]:
        """The answer, and behind it what mends it, a line each."""
        parts = [f"{self.subject}: {' '.join(self.why.split())}", *self.notes]
        if self.advice or self.command:
            parts.append(f"next: {': '.join(filter(None, (self.advice, self.command)))}")
        return parts

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"schema": 1, **asdict(self)}
