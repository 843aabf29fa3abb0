"""Processor time and memory of the processes of a pool and its runs, by role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

import psutil

from trialfleet.infra.pool.embedded import Pool

NODE = "node: "  # a role below the startd begins so; all others are the access point's
TRAINER = f"{NODE}trainer"
_OF_NODES = ("condor_startd", "condor_procd")  # the latter looks at the jobs' processes


def cpu_by_role(pool: Pool) -> dict[str, float]:
    """Return processor seconds by role; those of ended processes count for their parents.

    The difference of two results is the usage between them, as long as the pool is up.
    """
    found: dict[str, float] = defaultdict(float)
    for role, process in _roles(pool):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[role] += times.user + times.system
            found[f"{role}'s ended children"] += times.children_user + times.children_system
    return dict(found)


def memory_by_role(pool: Pool) -> dict[str, tuple[int, float]]:
    """Return number and memory in MB of processes by role; shared memory is divided."""
    found: dict[str, tuple[int, float]] = {}
    for role, process in _roles(pool):
        with suppress(psutil.Error):
            count, megabytes = found.get(role, (0, 0.0))
            found[role] = count + 1, megabytes + process.memory_full_info().pss / 1e6
    return found


def parts(used: dict[str, float]) -> tuple[float, float]:
    """Return the access point's part of usage by role, and the nodes' without the trainers."""
    trainers = sum(value for role, value in used.items() if role.startswith(TRAINER))
    nodes = sum(value for role, value in used.items() if role.startswith(NODE))
    return sum(used.values()) - nodes, nodes - trainers


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the usage between two readings."""
    roles = before.keys() | after.keys()
    return {role: after.get(role, 0.0) - before.get(role, 0.0) for role in roles}


def _roles(pool: Pool) -> Iterator[tuple[str, psutil.Process]]:
    """Yield each process of the pool with its role."""
    known: dict[int, psutil.Process] = {}
    if master := pool.master():
        with suppress(psutil.Error):
            parent = psutil.Process(master.pid)
            known = {one.pid: one for one in (parent, *parent.children(recursive=True))}
    for one in pool.processes():  # those that left their parents
        with suppress(psutil.Error):
            known.setdefault(one.pid, psutil.Process(one.pid))
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for pid, process in known.items():
        with suppress(psutil.Error):
            parents[pid], names[pid] = process.ppid(), _name(process)
    for pid, process in known.items():
        if pid not in names:
            continue
        above, on_node = pid, False
        while above in names and not on_node:
            on_node, above = names[above] in _OF_NODES, parents[above]
        name = names[pid]
        if on_node and names.get(parents[pid]) == "agent":
            name = "trainer"
        yield (NODE if on_node else "") + name, process


def _name(process: psutil.Process) -> str:
    """Return a process's name; of an interpreter, the name of its program."""
    name, words = process.name(), " ".join(process.cmdline())
    marks = {"agent.pyz": "agent", "programs serve": "service", "programs supervise": "supervisor"}
    return next((what for mark, what in marks.items() if mark in words), name)
