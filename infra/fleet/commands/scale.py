"""`fleet scale`: bring the fleet to the number of nodes that a person asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import candidates as choice
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.instances.launch import Launched, Progress
from trialfleet.infra.fleet.lifecycle import down
from trialfleet.infra.fleet.lifecycle import up as fleet_up
from trialfleet.infra.fleet.scaling import cost_record, down_note, draining
from trialfleet.infra.fleet.scaling import scaling_decision as scaling
from trialfleet.infra.fleet.scaling.known_nodes import KnownNodes
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.limits import Limits
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.machines import Resources


def bring_up(aws: Aws, fleet: Fleet, count: int | None, run: str, progress: Progress) -> Launched:
    """Launch nodes until `count` are alive, with this machine as their manager.

    If `count` is None, it is the fleet's minimum, but at least one. The nodes' costs belong to
    `run`, unless it is empty. The result has all living nodes, and AWS's last refusals. If the
    fleet was taken down by `fleet down`, autoscalers may launch nodes again.
    """
    given = fleet_up.gather_inputs(aws, fleet)
    down_note.lift(fleet.full_name)
    history = cost_record.known_history(aws, fleet, progress)
    found = choice.candidates(aws, fleet, progress)
    candidates = choice.rank_candidates(found, fleet, history)
    return fleet_up.up(aws, fleet, given, candidates, count, run, progress)


def scale(aws: Aws, fleet: Fleet, count: int, progress: Progress) -> list[str]:
    """Change the number of nodes to `count`. Return a line for each problem.

    Surplus nodes are drained before they end. A problem is AWS's refusal of a missing node, or a
    node that stays because it can't be drained.
    """
    fleet_up.check_count(fleet, count)
    living, notices = inventory.living_in_all_regions(aws, fleet)
    if count >= len(living):
        launched = bring_up(aws, fleet, count, "", progress)
        missing = count - len(launched.instances)
        return [str(refusal) for refusal in launched.refusals] if missing > 0 else []
    for notice in notices:
        progress(notice)
    return _shrink(aws, fleet, count, living, progress)


def _shrink(
    aws: Aws, fleet: Fleet, count: int, living: Sequence[Instance], progress: Progress
) -> list[str]:
    now, room = datetime.now(UTC), Resources(gpus=fleet.needs.gpus * fleet.shares)
    nodes = KnownNodes(now).nodes(
        living, pool_demand.fleet_machines(fleet.full_name), {}, room, now
    )
    limits = Limits(
        min_nodes=0,
        max_nodes=fleet.nodes.max,
        idle_minutes=fleet.idle_minutes,
        boot_minutes=fleet_up.BOOT_MINUTES,
        room=room,
        price=0.0,
    )
    decision = scaling.decide_downscale(count, nodes, limits, now)
    by_id = {instance.id: instance for instance in living}
    going = [by_id[removal.instance] for removal in decision.drain]
    reason = f"the fleet is scaled to {count} node(s)"
    problems = draining.drain_instances(going, reason, progress) if going else []
    joined = pool_demand.fleet_machines(fleet.full_name) if going else ()
    kept = draining.undrained_nodes({one.id for one in going}, joined)
    ending = [
        *(one for one in going if one.id not in {node.instance for node in kept}),
        *(by_id[removal.instance] for removal in decision.terminate),
    ]
    if ending:
        progress(f"terminating {', '.join(instance.id for instance in ending)}")
        down.terminate(aws, ending)
        if trouble := _explain(aws, fleet, {instance.id: reason for instance in ending}):
            progress(
                "the ended nodes' costs are not recorded; AWS forgets these nodes within an hour, "
                f"and `trialfleet cost` may then lack them: {trouble}"
            )
    return problems


def _explain(aws: Aws, fleet: Fleet, whys: Mapping[str, str]) -> str:
    """Write into the record of costs why nodes end. Return an error, or an empty text."""
    fleet, unknown = inventory.with_earlier_regions(aws, fleet)
    if unknown:  # nodes in these regions would count as ended
        return unknown
    try:
        listed = inventory.instances(aws, fleet, gone=True)
        record = cost_record.load(aws, fleet).add_listing(listed, datetime.now(UTC))
        cost_record.save(aws, fleet, record.add_reasons(whys))
    except FleetError as error:
        return str(error)
    return ""
