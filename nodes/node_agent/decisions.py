"""The rules by which an EC2 node drains, shuts down and takes sick GPUs offline.

The machine leaves the pool for one of these causes, the strongest first. "Drain" means that the
machine evicts its jobs and takes no new ones. "Off" means that it shuts down. "Empty" means that no
job has a slot. The lease is an end time in a tag of the instance. The manager renews the lease.

cause         when                                        then
interruption  AWS takes the spot instance back            drain; AWS ends it two minutes later
lease         the lease has expired                       drain; off when empty, or after 5 minutes
rebalance     AWS expects to take it back soon            drain; off when empty
token         the node's token has expired                drain; off when empty
fence         jobs could reach the instance's metadata    drain; off when empty for `idle_minutes`
failures      several jobs fail within a minute           drain; off when empty for `idle_minutes`
idle          empty for `idle_minutes`                    drain if still empty; off when empty

After `fence` and `failures` the machine stays on longer, so that a person can inspect it. Sick GPUs
are no cause to leave. They are taken offline if another GPU is healthy.

While there is a cause to leave, each call of `decide` asks the startd, HTCondor's daemon on this
machine, to drain unless it already drains. So a restarted startd drains, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from trialfleet.nodes.node_agent.history import FAILURE_SECONDS, Failure, burst

CAUSES = ("interruption", "lease", "rebalance", "token", "fence", "failures", "idle")
HEALTHY, SICK = "TrialfleetGpuHealthy", "TrialfleetSickGpus"  # attributes of a slot, by the probe
# Causes that still apply after a person cancels the draining:
LASTING = ("interruption", "lease", "rebalance", "token")
LEASE_GRACE = 300.0  # seconds for jobs to leave after the lease has expired


@dataclass(frozen=True)
class Startd:
    """The state of this machine's startd, the HTCondor daemon that runs its jobs."""

    held: int  # number of slots that jobs hold (see slots.py)
    draining: str | None  # the reason why it drains ("": no reason given); None: it doesn't drain
    started: float  # start time of the daemon in UNIX seconds, which identifies it
    sick: tuple[str, ...] | None = None  # result of `sick_gpus`


@dataclass(frozen=True)
class Observations:
    """The agent's observations in one step."""

    now: float  # UNIX seconds, to compare with other programs' times
    uptime: float  # seconds since boot, for durations: a monotonic clock
    startd: Startd | None = None  # None if it doesn't answer
    busy: bool = False  # a slot is held; if the startd doesn't answer: a job's starter lives
    in_collector: bool = False  # the startd's ad is in the manager's collector
    # End of the lease; None if the tag is missing or can't be read now.
    expires: float | None = None
    interruption: str | None = None  # AWS's notice, such as "terminate at 2026-11-20T12:00:00Z"
    rebalance: str | None = None  # when AWS recommended to leave
    # End of the validity of the node's token, UNIX seconds; None if it can't be read.
    token_expires: float | None = None
    failures: tuple[Failure, ...] = ()  # failed jobs in the history
    # Why jobs can't be kept from the instance's metadata; None: they are kept from it.
    unfenced: str | None = None


@dataclass(frozen=True)
class Departure:
    """The reason why the machine is leaving the pool, and since when."""

    cause: str  # one of CAUSES
    reason: str  # for the startd's ad
    since: float  # uptime
    drained: float = 0  # start time of the startd that was seen draining; 0 if none was seen


@dataclass(frozen=True)
class Memory:
    """The agent's memory from step to step. It is saved to a file, to survive a crash."""

    joined: bool = False  # the node has been in the collector; the shutdown at boot is cancelled
    expires: float | None = None  # the last known end of the lease, UNIX seconds
    # Uptime since which no slot is held; None while a slot is held, and before joining.
    idle_since: float | None = None
    leaving: Departure | None = None  # None while the node takes jobs
    failures_reset: float = 0  # failed jobs up to this time don't count, UNIX seconds
    offline: tuple[str, ...] = ()  # GPUs that were taken offline


@dataclass(frozen=True)
class Decision:
    """The agent's actions after one step."""

    memory: Memory  # the new state
    drain: str | None = None  # ask the startd to drain, for this reason; None: don't
    only_idle: bool = False  # drain only if no slot is held at that moment
    cancel_switch: bool = False  # cancel the shutdown that was scheduled at boot
    # Take these GPUs offline, and all others online; None: change nothing.
    offline: tuple[str, ...] | None = None
    power_off: str | None = None  # shut the machine down, for this reason; None: don't


def decide(memory: Memory, seen: Observations, idle_minutes: float) -> Decision:
    """Return the agent's actions in this step.

    `memory` is from the step before. If `idle_minutes` is 0, the node never leaves for being idle.
    """
    after = after_drain_cancelled(update_memory(memory, seen), seen)
    after = replace(after, leaving=stronger_cause(after.leaving, cause(after, seen, idle_minutes)))
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
        power_off=power_off(after, seen, idle_minutes),
    )


def sick_gpus(slot: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the GPUs to take offline, from a slot's ClassAd.

    A healthy machine may have some sick GPUs. If the probe has not found the machine healthy,
    return None. The agent then takes no GPU offline or online.
    """
    if slot.get(HEALTHY) is not True:
        return None
    return tuple(filter(None, str(slot.get(SICK, "")).split(",")))


def update_memory(memory: Memory, seen: Observations) -> Memory:
    """Return `memory` with `joined`, `expires` and `idle_since` updated from `seen`."""
    joined = memory.joined or (seen.startd is not None and seen.in_collector)
    idle_since = memory.idle_since if memory.idle_since is not None else seen.uptime
    return replace(
        memory,
        joined=joined,
        expires=memory.expires if seen.expires is None else seen.expires,
        idle_since=idle_since if joined and not seen.busy else None,
    )


def after_drain_cancelled(memory: Memory, seen: Observations) -> Memory:
    """Return `memory`, without the machine's cause to leave if the machine may stay.

    A machine with the cause `idle` may stay if a job has started before the drain. After a person
    has cancelled the drain with `condor_drain -cancel`, the machine may stay unless the cause is in
    LASTING.
    """
    leaving, startd = memory.leaving, seen.startd
    if leaving is None or startd is None:
        return memory
    if startd.draining is not None:
        return replace(memory, leaving=replace(leaving, drained=startd.started))
    if leaving.cause == "idle" and seen.busy:
        return replace(memory, leaving=None)
    if leaving.drained == startd.started and leaving.cause not in LASTING:
        return replace(memory, leaving=None, failures_reset=seen.now, idle_since=seen.uptime)
    return memory


def stronger_cause(earlier: Departure | None, found: Departure | None) -> Departure | None:
    """Return the stronger of two causes to leave. If they are equally strong, return `earlier`."""
    both = [one for one in (earlier, found) if one is not None]
    return min(both, key=lambda one: CAUSES.index(one.cause)) if both else None


def cause(memory: Memory, seen: Observations, idle_minutes: float) -> Departure | None:
    """Return the strongest cause to leave the pool that applies now, or None if none applies."""
    failed = burst(seen.failures, memory.failures_reset)
    reasons = {
        "interruption": seen.interruption and f"spot interruption: {seen.interruption}",
        "lease": lease_reason(memory, seen),
        "rebalance": seen.rebalance and f"rebalance recommendation of {seen.rebalance}",
        "token": token_reason(seen),
        "fence": seen.unfenced,
        "failures": failed and failure_reason(failed),
        "idle": idle_reason(memory, seen, idle_minutes),
    }
    found = next((name for name in CAUSES if reasons[name]), None)
    return Departure(found, str(reasons[found]), seen.uptime) if found else None


def lease_reason(memory: Memory, seen: Observations) -> str | None:
    """Return the reason to leave if the node's lease has expired, else None."""
    if memory.expires is None or seen.now < memory.expires:
        return None
    return f"lease expired at {utc_text(memory.expires)}: the manager has not renewed it"


def token_reason(seen: Observations) -> str | None:
    """Return the reason to leave if the node's token has expired, else None."""
    if seen.token_expires is None or seen.now < seen.token_expires:
        return None
    return (
        f"the node's token expired at {utc_text(seen.token_expires)}: without it, the node can't "
        "connect to the manager again"
    )


def failure_reason(failed: tuple[Failure, ...]) -> str:
    """Return the reason to leave after these failures, with each job and how it ended."""
    listed = ", ".join(f"{one.job} ({one.how})" for one in failed)
    return f"{len(failed)} jobs failed here within {FAILURE_SECONDS:.0f} s: {listed}"


def idle_reason(memory: Memory, seen: Observations, idle_minutes: float) -> str | None:
    """Return the reason to leave if no job held a slot for `idle_minutes` (0: never), else None."""
    if memory.idle_since is None or not idle_minutes:
        return None
    is_long = seen.uptime - memory.idle_since >= 60 * idle_minutes
    return f"idle for {idle_minutes:g} minutes" if is_long else None


def power_off(memory: Memory, seen: Observations, idle_minutes: float) -> str | None:
    """Return why the machine must be shut down now, or None if it must stay on."""
    leaving = memory.leaving
    if leaving is None:
        return None
    # A startd that doesn't answer takes no jobs either.
    refuses = seen.startd is None or seen.startd.draining is not None
    empty = refuses and not seen.busy
    waited = seen.uptime - leaving.since >= LEASE_GRACE
    if leaving.cause == "lease" and (empty or waited):
        return leaving.reason if empty else f"{leaving.reason}; jobs did not leave in time"
    if leaving.cause in {"rebalance", "token"} and empty:
        return leaving.reason
    if empty and (reason := idle_reason(memory, seen, idle_minutes)):
        return reason if leaving.cause == "idle" else f"{reason}; before that: {leaving.reason}"
    return None


def changes(before: Memory, after: Memory) -> list[str]:
    """Return lines for the log about what changed in the agent's memory."""
    lines = []
    if after.joined and not before.joined:
        lines.append("the node has joined the pool")
    if after.expires is not None and after.expires != before.expires:
        lines.append(f"the lease ends at {utc_text(after.expires)}")
    if after.leaving is None and before.leaving is not None:
        lines.append(f"the node no longer leaves the pool ({before.leaving.cause})")
    elif after.leaving and (not before.leaving or before.leaving.cause != after.leaving.cause):
        now = after.leaving
        lines.append(f"the node leaves the pool ({now.cause}): {now.reason}")
    if after.offline != before.offline:
        lines.append(f"sick GPUs: {', '.join(after.offline) or 'none now'}")
    return lines


def utc_text(moment: float) -> str:
    """Return UNIX seconds as UTC text, such as 2026-11-20T12:00:00Z."""
    then = datetime.fromtimestamp(moment, timezone.utc)  # noqa: UP017  a node may have Python 3.10
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")
