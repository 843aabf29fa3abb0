"""The DAG's side of the autoscaler where it is the graph's PROVISIONER node.

DAGMan starts the graph when its provisioner's job says `ProvisionerState = 2`, and does not end
before the provisioner does: so it has to notice that nothing is left to do but the FINAL node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trialfleet.errors import InputError
from trialfleet.infra.pool import schedd

PROVISIONED = 2
LOOKS = 3  # in a row, so that a moment between two jobs isn't taken for the end
OWN_AND_FINAL = 2  # nodes that can't be done while the provisioner lives
_COUNTS = ("Total", "Done", "Failed", "Futile", "Ready", "Prerun", "Queued", "Postrun", "Holdrun")


class Graph:
    """The graph whose provisioner is this process, a job in HTCondor's queue."""

    def __init__(self, job: str | None = None) -> None:
        """Take the job's id, CLUSTER.PROC; by default this process's own.

        Raises:
            InputError: this process is no job.
        """
        self.job = job or os.environ.get("CONDOR_ID", "")
        if not self.job.replace(".", "", 1).isdigit():
            raise InputError(
                "a provisioner is a node of a graph: HTCondor starts it, and tells it its job's id"
                f" in CONDOR_ID, which is {self.job!r} here"
            )
        self._quiet = 0

    def start(self) -> None:
        """Let DAGMan start the graph's nodes."""
        schedd.edit(self.job, "ProvisionerState", str(PROVISIONED))

    def is_started(self) -> bool:
        """Tell whether a former life of this job has let DAGMan start."""
        own = _ad(self.job, ["ProvisionerState"]) or {}
        return own.get("ProvisionerState") == PROVISIONED

    def over(self) -> bool:
        """Tell whether nothing is left to do, by this look and the ones just before."""
        own = _ad(self.job, ["DAGManJobId"]) or {}
        parent = own.get("DAGManJobId")
        dagman = parent and _ad(f"{parent}.0", [f"DAG_Nodes{count}" for count in _COUNTS])
        self._quiet = self._quiet + 1 if not dagman or nothing_left(dagman) else 0
        return self._quiet >= LOOKS


def nothing_left(dagman: Mapping[str, Any]) -> bool:
    """Tell by a DAGMan job's ad whether all its nodes but provisioner and FINAL have ended."""
    nodes = {count: int(dagman.get(f"DAG_Nodes{count}", 0)) for count in _COUNTS}
    ended = nodes["Done"] + nodes["Failed"] + nodes["Futile"]
    moving = nodes["Ready"] + nodes["Prerun"] + nodes["Postrun"] + nodes["Holdrun"]
    return (
        ended > 0
        and ended >= nodes["Total"] - OWN_AND_FINAL
        and not moving
        and nodes["Queued"] <= 1  # the provisioner itself
    )


def _ad(job: str, attributes: list[str]) -> dict[str, Any] | None:
    """Return attributes of a job; None if the queue has no such job any more."""
    cluster, _, proc = job.partition(".")
    found = schedd.query(f"ClusterId == {int(cluster)} && ProcId == {int(proc or 0)}", attributes)
    return found[0] if found else None
