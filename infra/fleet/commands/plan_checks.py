"""Checks of a fleet before it is made: problems that would make `fleet up` fail, and warnings."""

from __future__ import annotations

from collections.abc import Sequence

from trialfleet.errors import TrialfleetError
from trialfleet.infra.fleet.aws import images, own_instance
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.commands import manager_checks
from trialfleet.infra.fleet.lifecycle.up import BOOT_MINUTES
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate
from trialfleet.infra.fleet.spec.price_cap import affordable_nodes


def problems(aws: Aws, fleet: Fleet, candidates: Sequence[Candidate]) -> list[str]:
    """Return the reasons why `fleet up` would fail: machine images that can't be found."""
    found = []
    for kind in sorted({(one.aws_region, one.type.architecture) for one in candidates}):
        try:
            images.find(aws, fleet, *kind)
        except TrialfleetError as error:
            found.append(str(error))
    return found


def warnings(fleet: Fleet, candidates: Sequence[Candidate]) -> list[str]:
    """Return the settings of a fleet's file that can't be met in full, a line each."""
    own = None if fleet.manager else own_instance.find()
    cheapest = min(one.price for one in candidates)
    unreached = manager_checks.unreachable_error(fleet, own)
    found = [
        f"{unreached}; {manager_checks.REACHED}" if unreached else "",
        _hourly_cap_problem(fleet, cheapest),
        _run_cap_problem(fleet, cheapest),
        _without_gpus(fleet, candidates),
    ]
    return [one for one in found if one]


def _hourly_cap_problem(fleet: Fleet, price: float) -> str:
    paid = affordable_nodes(fleet.price_cap.hour, 0.0, price)
    if paid >= fleet.nodes.min:
        return ""
    return (
        f"`price_cap.hour` ({fleet.price_cap.hour:g}) pays for {paid} nodes at {price:g} "
        f"USD per hour, fewer than `nodes.min` ({fleet.nodes.min}): raise the cap"
    )


def _run_cap_problem(fleet: Fleet, price: float) -> str:
    cap = fleet.price_cap.run
    if cap is None or cap / price * 60 > BOOT_MINUTES:
        return ""
    return (
        f"`price_cap.run` ({cap:g}) pays for {cap / price * 60:.0f} minutes of one node at "
        f"{price:g} USD per hour, but a node may take {BOOT_MINUTES} minutes to join: raise the cap"
    )


def _without_gpus(fleet: Fleet, candidates: Sequence[Candidate]) -> str:
    plain = sorted({one.type.name for one in candidates if not one.type.gpus})
    if fleet.trials_per_gpu is None or not plain:
        return ""
    verb = "has" if len(plain) == 1 else "have"
    return f"{', '.join(plain)} {verb} no GPU, but the study's trials need one (accelerator: gpu)"
