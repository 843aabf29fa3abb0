"""The facts of `trialfleet why` about an EC2 instance, read from AWS and the pool."""

from __future__ import annotations

from pathlib import Path

from trialfleet.errors import FleetError, InputError, PoolError
from trialfleet.infra.fleet.commands import status as fleet_status
from trialfleet.infra.fleet.commands.status import NodeStatus
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool.machines import Machine
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.loading import load_fleet
from trialfleet.workflows.views.why.facts import InstanceFacts

_FILES = ("study.yaml", "fleet.yaml")


def instance_facts(instance: str, folder: Path | None) -> InstanceFacts:
    """Return the facts about an EC2 instance.

    AWS is asked about the fleet of the run in `folder`. If there is no such fleet, the fleet is
    read from study.yaml or fleet.yaml in the current folder. Without any fleet, AWS is not asked.
    """
    fleet, file = _fleet(folder)
    machine, pool_away = _in_pool(instance)
    node, aws_away = _in_aws(instance, fleet, folder) if fleet else (None, "no fleet is known here")
    return InstanceFacts(
        node=node,
        machine=machine,
        aws_away=aws_away,
        pool_away=pool_away,
        fleet_file=file,
    )


def _fleet(folder: Path | None) -> tuple[Fleet | None, str]:
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


def _in_pool(instance: str) -> tuple[Machine | None, str]:
    try:
        machines = pool_demand.fleet_machines(named=True)
        return next((one for one in machines if one.instance == instance), None), ""
    except PoolError as error:
        return None, f"the pool is unreachable: {error}"


def _in_aws(instance: str, fleet: Fleet, folder: Path | None) -> tuple[NodeStatus | None, str]:
    from trialfleet.infra.fleet.aws import account
    from trialfleet.infra.fleet.aws.clients import Aws

    try:
        frozen = folder and RunFolder(folder).aws
        aws = account.read(frozen).enter() if frozen and frozen.exists() else Aws()
        found = fleet_status.status(aws, fleet)
    except (FleetError, InputError) as error:
        return None, f"AWS is unreachable: {error}"
    node = next((node for node in found.nodes if node.instance.id == instance), None)
    return node, "" if node else "; ".join(found.silent.values())
