"""Asking AWS and the pool about one instance."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import FleetError, InputError, PoolError
from trialfleet.infra.fleet.commands import status as fleet_status
from trialfleet.infra.fleet.commands.status import NodeStatus
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.pool import nodes as pool_nodes
from trialfleet.infra.fleet.pool.nodes import PoolNode
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.loading import load_fleet
from trialfleet.workflows.why.facts import InstanceFacts

_FILES = ("study.yaml", "fleet.yaml")


def instance_facts(instance: str, folder: Path | None) -> InstanceFacts:
    """Return what AWS and the pool know of an instance.

    Args:
        instance: its id.
        folder: a run that may have asked for it: its study has the fleet; None: the file here.
    """
    fleet, file = _fleet(folder)
    pool, pool_away = _in_pool(instance)
    node, aws_away = _in_aws(instance, fleet, folder) if fleet else (None, "no fleet is known here")
    return InstanceFacts(
        instance=instance,
        state=node.state if node else "",
        reason=node.ended if node else "",
        stage=node.stage if node else _stage(pool),
        why=node.why if node else "",
        note=_note(pool),
        healthy=pool.healthy if pool else None,
        lifecycle=node.lifecycle if node else "",
        minutes=node.age_minutes if node else 0.0,
        boot_minutes=up.BOOT_MINUTES,
        lease=node.expires if node and node.state == "running" else None,
        trials=tuple(trial.node for trial in pool.trials) if pool else (),
        aws_away=aws_away,
        pool_away=pool_away,
        fleet_file=file,
        now=datetime.now(UTC),
    )


def _fleet(folder: Path | None) -> tuple[Fleet | None, str]:
    """The fleet that an instance may be of, and the file that says so."""
    if folder is not None:
        frozen = load_frozen(RunFolder(folder).study)
        if frozen.study.fleet is not None:
            return frozen.study.fleet, frozen.study_file
    for name in _FILES:
        if Path(name).exists():
            try:
                return load_fleet(Path(name)), name
            except InputError:
                continue
    return None, ""


def _in_pool(instance: str) -> tuple[PoolNode | None, str]:
    try:
        return next((n for n in pool_nodes.nodes() if n.instance == instance), None), ""
    except PoolError as error:
        return None, f"the pool can't be asked: {error}"


def _in_aws(instance: str, fleet: Fleet, folder: Path | None) -> tuple[NodeStatus | None, str]:
    from trialfleet.infra.fleet.aws import account
    from trialfleet.infra.fleet.aws.clients import Aws

    try:
        frozen = folder and RunFolder(folder).aws
        aws = account.read(frozen).enter() if frozen and frozen.exists() else Aws()
        found = fleet_status.status(aws, fleet).nodes
    except (FleetError, InputError) as error:
        return None, f"AWS can't be asked: {error}"
    return next((node for node in found if node.instance == instance), None), ""


def _stage(pool: PoolNode | None) -> str:
    """How far it is where AWS isn't asked."""
    if pool is None:
        return ""
    if pool.draining:
        return "draining"
    return "sick" if pool.healthy is False else "joined"


def _note(pool: PoolNode | None) -> str:
    if pool is None:
        return ""
    drained = pool.drain_reason.removeprefix(pool_nodes.OURS) if pool.draining else ""
    return pool.note or drained
