"""What the nodes are given, gathered on the manager: address, token, program, configuration."""

from __future__ import annotations

from trialfleet.infra.fleet.aws import own_instance
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.lifecycle.up import NodeInputs, manager_address
from trialfleet.infra.fleet.nodes import bundle, user_data
from trialfleet.infra.fleet.nodes import configuration as node_config
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.manager import tokens
from trialfleet.infra.pool import htcondor_package


def gather(aws: Aws, fleet: Fleet) -> NodeInputs:
    """Return what `up` hands to the nodes.

    Raises:
        InputError: nobody says where the nodes find this manager.
        PoolError: this machine is no manager: it has no token for nodes, or no HTCondor.
    """
    own = own_instance.look()
    manager = manager_address(fleet, own)
    return NodeInputs(
        manager=manager,
        own=own,
        token=tokens.read_node_token(),
        bundle=bundle.build(node_config.render(fleet, manager)),
        condor_version=htcondor_package.managers_version(),
        user_data=user_data.render,
        endpoint_url=aws.endpoint(fleet.home),
    )
