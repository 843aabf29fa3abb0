"""Draining: an EC2 node takes no more jobs, and its jobs leave with their checkpoints.

HTCondor's collector gives the pool's administrator a key to administer nodes. The program
`condor_drain` uses this key. HTCondor's Python bindings don't use it, so they can't drain nodes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from trialfleet.errors import PoolError
from trialfleet.infra.fleet.htcondor.demand import fleet_machines
from trialfleet.infra.fleet.instances.launch import Progress
from trialfleet.infra.fleet.scaling.scaling_decision import Removal
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.connection import connect, use
from trialfleet.infra.pool.machines import OURS, Machine
from trialfleet.infra.pool.processes import run_captured, wait_until
from trialfleet.slots import IS_FREE

TOOL_SECONDS = 30  # a node that doesn't answer within this time can't be drained
AT_ONCE = 16  # nodes in parallel
# Maximum number of nodes that a step of the autoscaler drains. If no node answers, the step takes
# two minutes, and leases are still renewed in time.
IN_A_STEP = 64
DRAIN_SECONDS = 120.0  # trials have a minute to save a checkpoint, which is then transferred
# Answer of a node that drains already, which the pool may not show yet.
IN_PROGRESS = "Draining already in progress"


def drain(node: Machine, removal: Removal, program: str = "") -> str:
    """Ask a node to take no more jobs, and its present jobs to leave. Return the error, if any.

    Nothing is done if the node drains already. With `removal.only_idle`, a node that has a job
    refuses, which is an error. The node's `DrainReason` becomes `OURS` and the removal's reason.

    `program` is the path of `condor_drain`. If it is empty, the program is looked up on PATH.
    PoolError if PATH lacks the program, or if HTCondor does not run.
    """
    program = program or _find_condor_drain()
    if node.draining:
        return ""
    check = ["-check", IS_FREE] if removal.only_idle else []
    command = [program, "-graceful", "-reason", OURS + removal.reason, *check, node.slot]
    try:
        done = run_captured(command, timeout=TOOL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{node.slot} does not answer"
    if done.returncode == 0 or IN_PROGRESS in done.stderr:
        return ""
    output = " ".join((done.stderr or done.stdout).split())
    return (
        re.sub(r".*error code \d+: ", "", output)
        or f"condor_drain exited with code {done.returncode}"
    )


def _find_condor_drain() -> str:
    use(connect())
    found = shutil.which("condor_drain")
    if found is None:
        raise PoolError("condor_drain is not on PATH: install HTCondor's tools on this machine")
    return found


def drain_instances(instances: Sequence[Instance], reason: str, progress: Progress) -> list[str]:
    """Drain nodes, and wait until their trials have left. Return a line for each error.

    Trials that have not left after DRAIN_SECONDS are an error. Instances outside of the pool are
    skipped. An unreachable pool is returned as an error: the caller must still terminate the nodes.
    """
    wanted = {instance.id for instance in instances}
    try:
        program = _find_condor_drain()
        joined = [node for node in fleet_machines() if node.instance in wanted]
        orders = [Removal(instance=node.instance, reason=reason) for node in joined]
        refused = drain_all(joined, orders, partial(drain, program=program))
        asked = {node.instance for node in joined} - refused.keys()
        _wait(asked, progress)
        left = undrained_nodes(asked, fleet_machines(named=True))
    except PoolError as error:
        return [f"the nodes can't be drained: {error}"]
    return [
        *refused.values(),
        *(
            f"{node.instance} still runs {describe_trials(node)} after {DRAIN_SECONDS:.0f} s"
            for node in left
        ),
    ]


def drain_all(
    nodes: Iterable[Machine], orders: Sequence[Removal], drain: Callable[[Machine, Removal], str]
) -> dict[str, str]:
    """Ask the nodes of all `orders` to drain. Return a line for each that refuses, by its id."""
    machines = {node.instance: node for node in nodes}

    def ask(order: Removal) -> str:
        try:
            return drain(machines[order.instance], order)
        except PoolError as error:
            return str(error)

    with ThreadPoolExecutor(AT_ONCE) as threads:  # a silent node delays no other
        answers = zip(orders, threads.map(ask, orders), strict=True)
        return {
            one.instance: f"{one.instance} can't be drained: {why}" for one, why in answers if why
        }


def _wait(asked: set[str], progress: Progress) -> None:
    last_printed = ""

    def gone() -> bool:
        nonlocal last_printed
        left = undrained_nodes(asked, fleet_machines(named=True))
        text = ", ".join(
            f"{describe_trials(node)} on {node.instance}" for node in left if node.jobs
        )
        if text not in {"", last_printed}:
            progress(f"waiting for {text} to leave")
        last_printed = text
        return not left

    wait_until(gone, seconds=DRAIN_SECONDS, poll=1.0)


def describe_trials(node: Machine) -> str:
    """Return the names of a node's trials or, if they are unknown, the number of its jobs."""
    return ", ".join(trial.node for trial in node.trials) or f"{len(node.jobs)} job(s)"


def drain_text(node: Machine) -> str:
    """Return why a node drains, and who asked it to, or an empty text if it doesn't drain."""
    if not node.draining:
        return ""
    who = "the manager" if node.drain_reason.startswith(OURS) else "the node itself"
    return f"{node.drain_explanation or 'no reason given'} (drained by {who})"


def undrained_nodes(instances: set[str], known: Iterable[Machine]) -> list[Machine]:
    """Return the nodes in `instances` that run a job or may still start one.

    `instances` has the nodes' ids. `known` has the pool's machines.
    """
    return [
        node
        for node in known
        if node.instance in instances and not (node.draining and node.idle_since is not None)
    ]
