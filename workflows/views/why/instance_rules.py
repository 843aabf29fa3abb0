"""The answer of `trialfleet why` for an EC2 instance."""

from __future__ import annotations

import re

from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.facts import InstanceFacts

# Patterns of the reasons why a node leaves the pool, in the words of its agent or of AWS.
_LEAVING: tuple[tuple[str, Kind], ...] = (
    (r"spot interruption|SpotInstanceTermination|Server\.Spot", Kind.SPOT),
    (r"rebalance recommendation", Kind.SPOT),
    (r"lease expired", Kind.LEASE),
    (r"jobs failed here within", Kind.FAILING_JOBS),
    (r"metadata|fence", Kind.FENCE),
    (r"failed the probe|has not been probed", Kind.SICK),
    (r"idle for ", Kind.IDLE),
    (r"cap of \$|cost more than the cap", Kind.PRICE_CAP),
    (r"InsufficientInstanceCapacity", Kind.CAPACITY),
)
# Who or what is to blame, and what to do.
_OF_KIND: dict[Kind, tuple[Blame, str]] = {
    Kind.SPOT: (Blame.SPOT, "no action is needed: its trials continue elsewhere and cost no retry"),
    Kind.LEASE: (Blame.POOL, "check that the autoscaler runs: it renews leases"),
    Kind.FAILING_JOBS: (Blame.NODE, "inspect it before it terminates; trials lose no retry"),
    Kind.FENCE: (Blame.NODE, "inspect it before it terminates"),
    Kind.SICK: (Blame.NODE, "the autoscaler replaces it once it is idle; to terminate it now"),
    Kind.IDLE: (Blame.NOBODY, "no action is needed"),
    Kind.PRICE_CAP: (Blame.MONEY, "raise fleet.price_cap"),
    Kind.CAPACITY: (Blame.AWS, ""),
    Kind.LOST: (Blame.NODE, "no action is needed: its trials continue elsewhere and cost no retry"),
    Kind.ENDED: (Blame.PERSON, ""),
    Kind.DRAINING: (Blame.PERSON, ""),
}


def kind_of_leaving(words: str) -> Kind | None:
    """Return the kind of the reason `words` for which a node leaves the pool; None if unknown."""
    return next((kind for pattern, kind in _LEAVING if re.search(pattern, words)), None)


def explain_instance(node: InstanceFacts) -> Answer:
    """Return why an EC2 instance is in its state."""
    answer = (
        _explain_unknown(node)
        or _explain_ended(node)
        or _explain_expired_lease(node)
        or _draining(node)
        or _explain_sick(node)
        or _explain_booting(node)
        or _explain_well(node)
    )
    return answer.with_evidence(node.stage_reason, node.aws_away, node.pool_away)


def _answer(
    node: InstanceFacts, kind: Kind, why: str, *, blame: Blame | None = None, advice: str = ""
) -> Answer:
    known_blame, known_advice = _OF_KIND.get(kind, (Blame.NOBODY, ""))
    command = f"trialfleet fleet status {node.fleet_file}".rstrip()
    return Answer(kind, blame or known_blame, why, advice or known_advice, command)


def _explain_unknown(node: InstanceFacts) -> Answer | None:
    if node.state or node.stage == "joined" or node.note:
        return None
    if node.aws_away:
        why = f"AWS is unreachable, and the pool doesn't list it: {node.aws_away}"
        return _answer(node, Kind.UNKNOWN, why, blame=Blame.AWS)
    why = "neither AWS nor the pool lists it; AWS lists an instance for about an hour after its end"
    return _answer(node, Kind.LOST, why)


def _explain_ended(node: InstanceFacts) -> Answer | None:
    if node.stage not in {"ended", "ending"} and node.state not in {"stopped", "stopping"}:
        return None
    reason = "; ".join(dict.fromkeys(filter(None, (node.reason, node.note))))
    kind = kind_of_leaving(reason) or kind_of_leaving(node.stage_reason)
    if kind is None:
        kind = Kind.ENDED if "User" in node.reason or not node.reason else Kind.LOST
    return _answer(
        node, kind, f"it has ended: {reason or node.stage_reason or 'AWS gives no reason'}"
    )


def _explain_expired_lease(node: InstanceFacts) -> Answer | None:
    lease = node.node.instance.expires if node.node and node.state == "running" else None
    if lease is None or node.now < lease:
        return None
    why = f"its lease ended at {lease:%H:%M} UTC without renewal"
    return _answer(node, Kind.LEASE, f"{why}{f': {node.note}' if node.note else ''}")


def _draining(node: InstanceFacts) -> Answer | None:
    if node.stage != "draining":
        return None
    kind = kind_of_leaving(node.note or node.stage_reason) or Kind.DRAINING
    return _answer(node, kind, f"it takes no more trials: {node.note or node.stage_reason}")


def _explain_sick(node: InstanceFacts) -> Answer | None:
    return _answer(node, Kind.SICK, node.stage_reason) if node.stage == "sick" else None


def _explain_booting(node: InstanceFacts) -> Answer | None:
    if node.stage not in {"asked", "booted"}:
        return None
    if node.pool_away:
        return _answer(node, Kind.POOL_DOWN, node.pool_away, blame=Blame.POOL)
    failed = re.search(r"\bfailed\b", node.stage_reason) and node.stage == "booted"
    if failed or (node.node and node.node.is_late):
        advice = "read its log: docs/node-does-not-join.md"
        return _answer(node, Kind.BOOT_FAILED, node.stage_reason, blame=Blame.NODE, advice=advice)
    return _answer(node, Kind.BOOTING, f"it is booting: {node.stage_reason}")


def _explain_well(node: InstanceFacts) -> Answer:
    trials = node.machine.trials if node.machine else ()
    runs = ", ".join(trial.node for trial in trials[:3])
    what = f"it is running {runs}" if runs else "it is in the pool and free"
    note = f"; {node.note}" if node.note else ""
    return _answer(node, Kind.WELL, f"no problem: {what}{note}")
