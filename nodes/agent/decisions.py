"""What the agent does about what it sees. Pure: no clock, no files, no processes.

A node leaves for one of these causes, the strongest first:

cause         when                                        then
interruption  AWS takes the spot instance back            drain; AWS ends it two minutes later
lease         the manager hasn't renewed the lease        drain; off when empty, or after 5 minutes
rebalance     AWS expects to take it back soon            drain; off when empty
fence         jobs can't be kept from the metadata        drain; stays for a look until it was idle
failures      job after job fails here                    drain; stays for a look until it was idle
idle          no slot held for the settings' minutes      drain if still idle; off when empty

GPUs that the probe calls sick, among others that are well, are taken offline, and brought back when
it no longer does.

"Drain" is a wish, not an event: it is asked for in each step until the startd says that it drains,
so that a startd that was restarted drains again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone

from trialfleet.nodes.agent.history import Failure, burst

CAUSES = ("interruption", "lease", "rebalance", "fence", "failures", "idle")
LASTING = ("interruption", "lease", "rebalance")  # hold even when somebody ends the draining


@dataclass(frozen=True)
class Rules:
    """Limits and waiting times of the decisions."""

    idle_minutes: float = 10  # without a held slot for so long, the node goes; 0: never
    lease_grace: float = 300  # seconds that jobs get to leave once the lease has expired
    failures: int = 3  # jobs that fail within `failure_seconds` before the node counts as sick
    failure_seconds: float = 60


@dataclass(frozen=True)
class Startd:
    """What the node's own startd says."""

    held: int  # slots that jobs have, by slots.py
    draining: str | None  # the reason why it drains ("" if none was given); None if it doesn't
    started: float  # when the daemon started, UNIX seconds: tells one startd from the next
    # GPUs that the probe calls sick, while others are well; None if none is well, or it hasn't said
    # anything.
    sick: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Seen:
    """What the agent sees in one step."""

    now: float  # UNIX seconds, to compare with what others wrote
    uptime: float  # seconds since boot, for durations: nobody sets this clock
    startd: Startd | None = None  # None if it doesn't answer
    busy: bool = False  # a slot is held; while the startd is silent: a job's starter lives
    in_collector: bool = False  # the startd's ad was found in the manager's collector
    # End of the lease; None if there is no such tag or it can't be read now.
    expires: float | None = None
    interruption: str | None = None  # AWS's notice, such as "terminate at 2026-11-20T12:00:00Z"
    rebalance: str | None = None  # when AWS recommended to leave
    failures: tuple[Failure, ...] = ()  # jobs that failed here, as far as the history goes back
    # Why jobs can't be kept from the instance's metadata; None while they are.
    unfenced: str | None = None


@dataclass(frozen=True)
class Leaving:
    """Why the node leaves."""

    cause: str  # one of CAUSES
    reason: str  # for the startd's ad
    since: float  # uptime
    drained: float = 0  # the `started` of the startd that was seen draining; 0 until then


@dataclass(frozen=True)
class Memory:
    """What the agent remembers from one step to the next, also after a crash."""

    joined: bool = False  # the node has been in the collector; the dead man's switch is off
    expires: float | None = None  # the last known end of the lease, UNIX seconds
    # Uptime since which no slot is held; None while one is, or before joining.
    idle_since: float | None = None
    leaving: Leaving | None = None  # None while the node takes jobs
    forgiven: float = 0  # failures up to this moment don't count any more, UNIX seconds
    offline: tuple[str, ...] = ()  # GPUs that were taken offline


@dataclass(frozen=True)
class Decision:
    """What to do now."""

    memory: Memory  # what to remember
    drain: str | None = None  # ask the startd to drain, for this reason; None: don't
    only_idle: bool = False  # ask for it on condition that no slot is held at that moment
    cancel_switch: bool = False  # cancel the dead man's switch
    # Take these GPUs offline, and bring back all others; None: leave them.
    offline: tuple[str, ...] | None = None
    power_off: str | None = None  # shut the machine down, for this reason; None: don't


def decide(memory: Memory, seen: Seen, rules: Rules) -> Decision:
    """Return what to do about what is seen."""
    after = obeyed(noted(memory, seen), seen)
    after = replace(after, leaving=stronger(after.leaving, cause(after, seen, rules)))
    leaving = after.leaving
    wanted = leaving is not None and seen.startd is not None and seen.startd.draining is None
    sick = seen.startd.sick if seen.startd else None
    if sick is not None:
        after = replace(after, offline=sick)
    return Decision(
        after,
        offline=sick if sick != memory.offline else None,
        drain=leaving.reason if leaving and wanted else None,
        only_idle=leaving is not None and leaving.cause == "idle",
        cancel_switch=after.joined and not memory.joined,
        power_off=power_off(after, seen, rules),
    )


def noted(memory: Memory, seen: Seen) -> Memory:
    """Return the memory with what is new: joined, the lease, since when nothing is held."""
    joined = memory.joined or (seen.startd is not None and seen.in_collector)
    idle_since = memory.idle_since if memory.idle_since is not None else seen.uptime
    return replace(
        memory,
        joined=joined,
        expires=memory.expires if seen.expires is None else seen.expires,
        idle_since=idle_since if joined and not seen.busy else None,
    )


def obeyed(memory: Memory, seen: Seen) -> Memory:
    """Return the memory after looking at what became of the draining.

    Somebody who ended it (`condor_drain -cancel`) wants the node back: what was held against it is
    forgotten, unless its time is over anyway. A job that came before an idle node could drain
    keeps the node.
    """
    leaving, startd = memory.leaving, seen.startd
    if leaving is None or startd is None:
        return memory
    if startd.draining is not None:
        return replace(memory, leaving=replace(leaving, drained=startd.started))
    if leaving.cause == "idle" and seen.busy:
        return replace(memory, leaving=None)
    if leaving.drained == startd.started and leaving.cause not in LASTING:
        return replace(memory, leaving=None, forgiven=seen.now, idle_since=seen.uptime)
    return memory


def stronger(former: Leaving | None, found: Leaving | None) -> Leaving | None:
    """Return the one that weighs more; the former of two equals."""
    both = [one for one in (former, found) if one is not None]
    return min(both, key=lambda one: CAUSES.index(one.cause)) if both else None


def cause(memory: Memory, seen: Seen, rules: Rules) -> Leaving | None:
    """Return the strongest cause to leave that there is now."""
    failed = burst(seen.failures, rules.failures, rules.failure_seconds, memory.forgiven)
    reasons = {
        "interruption": seen.interruption and f"spot interruption: {seen.interruption}",
        "lease": lease_reason(memory, seen),
        "rebalance": seen.rebalance and f"rebalance recommendation of {seen.rebalance}",
        "fence": seen.unfenced,
        "failures": failed and failure_reason(failed, rules),
        "idle": idle_reason(memory, seen, rules),
    }
    found = next((name for name in CAUSES if reasons[name]), None)
    return Leaving(found, str(reasons[found]), seen.uptime) if found else None


def lease_reason(memory: Memory, seen: Seen) -> str | None:
    """Return that the lease is over, if it is."""
    if memory.expires is None or seen.now < memory.expires:
        return None
    return f"lease expired at {at(memory.expires)}: the manager has not renewed it"


def failure_reason(failed: tuple[Failure, ...], rules: Rules) -> str:
    """Return which jobs failed, and how."""
    listed = ", ".join(f"{one.job} {one.how}" for one in failed)
    return f"{len(failed)} jobs failed here within {rules.failure_seconds:.0f} s: {listed}"


def idle_reason(memory: Memory, seen: Seen, rules: Rules) -> str | None:
    """Return that no slot has been held for the minutes of the settings, if so."""
    if memory.idle_since is None or not rules.idle_minutes:
        return None
    is_long = seen.uptime - memory.idle_since >= 60 * rules.idle_minutes
    return f"idle for {rules.idle_minutes:g} minutes" if is_long else None


def power_off(memory: Memory, seen: Seen, rules: Rules) -> str | None:
    """Return why the machine must be shut down now; None if not."""
    leaving = memory.leaving
    if leaving is None:
        return None
    # A startd that doesn't answer takes no jobs either.
    refuses = seen.startd is None or seen.startd.draining is not None
    empty = refuses and not seen.busy
    waited = seen.uptime - leaving.since >= rules.lease_grace
    if leaving.cause == "lease" and (empty or waited):
        return leaving.reason if empty else f"{leaving.reason}; jobs did not leave in time"
    if leaving.cause == "rebalance" and empty:
        return leaving.reason
    if empty and (reason := idle_reason(memory, seen, rules)):
        return reason if leaving.cause == "idle" else f"{reason}; before that: {leaving.reason}"
    return None


def changes(before: Memory, after: Memory) -> list[str]:
    """Return what is worth a line in the log."""
    lines = []
    if after.joined and not before.joined:
        lines.append("joined: the startd answers and is in the collector")
    if after.expires is not None and after.expires != before.expires:
        lines.append(f"the lease ends at {at(after.expires)}")
    if after.leaving is None and before.leaving is not None:
        lines.append(f"stays after all ({before.leaving.cause})")
    elif after.leaving and (not before.leaving or before.leaving.cause != after.leaving.cause):
        lines.append(f"leaves ({after.leaving.cause}): {after.leaving.reason}")
    if after.offline != before.offline:
        lines.append(f"GPUs that are sick: {', '.join(after.offline) or 'none any more'}")
    return lines


def at(moment: float) -> str:
    """Return UNIX seconds as people read them, in UTC."""
    then = datetime.fromtimestamp(moment, timezone.utc)  # noqa: UP017  a node may have Python 3.10
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")
