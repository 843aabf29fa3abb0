"""`fleet ssh`: a shell on an EC2 node by SSM's session manager, without an open port or a key."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from trialfleet.errors import InputError, PoolError, TrialfleetError, join_names
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.spelling import did_you_mean

MOST_NAMED = 8  # nodes in an error
GUIDES = {
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    "session-manager-plugin": (
        "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
        "session-manager-working-with-install-plugin.html"
    ),
}


def session(aws: Aws, fleet: Fleet, word: str) -> list[str]:
    """Return the command line that opens a shell on the node that `word` names.

    Raises:
        InputError: the fleet has no `ssm: true`, or `word` does not name exactly one node.
        TrialfleetError: a program is missing on this machine, or the node doesn't run.
    """
    if not fleet.ssm:
        raise InputError(
            "the fleet's nodes don't allow sessions: set `ssm: true` in the fleet, then run "
            "`trialfleet fleet up`, which gives the nodes' role the permissions"
        )
    if missing := missing_programs():
        raise TrialfleetError(missing)
    machines: Mapping[str, str] = {}
    unnamed = ""
    try:
        machines = {one.name: one.instance for one in pool_demand.fleet_machines(fleet.full_name)}
    except PoolError as error:
        unnamed = f"nodes are known by their instance ids alone: {error}"
    everywhere, unknown = inventory.with_earlier_regions(aws, fleet)
    listing = inventory.list_by_region(aws, everywhere)
    try:
        node = node_called(word, listing.instances, machines)
    except InputError as error:
        unseen = filter(None, (unknown, *map(str, listing.silent.values()), unnamed))
        raise InputError("; ".join([str(error), *unseen])) from error
    return ["aws", "ssm", "start-session", "--target", node.id, "--region", node.aws_region]


def missing_programs() -> str:
    """Return which programs for a session are missing here, or an empty text if none is."""
    absent = [name for name in GUIDES if shutil.which(name) is None]
    return "; ".join(f"{name} isn't on PATH: {GUIDES[name]} says how to get it" for name in absent)


def node_called(word: str, nodes: Sequence[Instance], machines: Mapping[str, str]) -> Instance:
    """Return the node that a person means by `word`.

    `word` is an instance id, the beginning of one, or a node's name in the pool. `machines` maps
    these names to instance ids. If several ids begin with `word`, living nodes are preferred.

    Raises:
        InputError: `word` fits no node, or several ids begin with `word`.
        TrialfleetError: the node has ended, or doesn't run yet.
    """
    own = machines.get(word, word)
    same = [node for node in nodes if node.id == own]
    found = same or [node for node in nodes if word and node.id.startswith(word)]
    if len(found) > 1:  # prefer living nodes
        found = [node for node in found if node.is_alive] or found
    if len(found) > 1:
        raise InputError(
            f"{word!r} matches several nodes: {join_names([node.id for node in found], MOST_NAMED)}"
        )
    if not found:
        living = [node.id for node in nodes if node.is_alive]
        known = (
            f"the fleet's nodes are {join_names(living, MOST_NAMED)}"
            if living
            else "the fleet has no node"
        )
        raise InputError(f"no node {word!r}{did_you_mean(word, [*living, *machines])}: {known}")
    (node,) = found
    if not node.is_alive:
        raise TrialfleetError(f"{node.id} has ended{f': {node.ended}' if node.ended else ''}")
    if node.state != "running":
        raise TrialfleetError(f"{node.id} isn't running: it is {node.state}")
    return node
