"""The autoscaler as the PROVISIONER node of a DAG, which lets the other nodes start.

DAGMan starts the other nodes once the provisioner's job has `ProvisionerState = 2`. The DAG doesn't
end before the provisioner. So the provisioner must end when only the DAG's FINAL node, which
runs last, is left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trialfleet.errors import InputError
from trialfleet.infra.pool import schedd

PROVISIONED = 2
LOOKS = 3  # polls in a row, so that a moment between two jobs isn't taken for the end
OWN_AND_FINAL = 2  # DAG nodes that can't be done while the provisioner lives
_COUNTS = ("Total", "Done", "Failed", "Futile", "Ready", "Prerun", "Queued", "Postrun", "Holdrun")


class Graph:
    """The DAG whose provisioner is this process, a job in HTCondor's queue."""

    def __init__(self) -> None:
        """Read the id of this process's job. InputError if this process isn't a job."""
        self.job = os.environ.get("CONDOR_ID", "")
        if not self.job.replace(".", "", 1).isdigit():
            raise InputError(
                "the provisioner must be started by HTCondor, as a node of a run's DAG: the "
                "environment variable CONDOR_ID must be the id of the provisioner's job, but is "
                f"{self.job!r}"
            )
        self._quiet = 0

    def start(self) -> None:
        """Let DAGMan start the DAG's nodes."""
        schedd.edit(self.job, "ProvisionerState", str(PROVISIONED))

    def is_started(self) -> bool:
        """Return whether a process of this job has let the DAG's nodes start."""
        own = _ad(self.job, ["ProvisionerState"]) or {}
        return own.get("ProvisionerState") == PROVISIONED

    def is_over(self) -> bool:
        """Return whether only the DAG's FINAL node is left.

        The result is True after `LOOKS` calls in a row that found no other node, or no DAGMan.
        """
        own = _ad(self.job, ["DAGManJobId"]) or {}
        parent = own.get("DAGManJobId")
        dagman = parent and _ad(f"{parent}.0", [f"DAG_Nodes{count}" for count in _COUNTS])
        self._quiet = self._quiet + 1 if not dagman or nothing_left(dagman) else 0
        return self._quiet >= LOOKS


def nothing_left(dagman: Mapping[str, Any]) -> bool:
    """Return whether, by DAGMan's ClassAd, only the provisioner and the FINAL node are left."""
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
    cluster, _, proc = job.partition(".")
    found = schedd.query(f"ClusterId == {int(cluster)} && ProcId == {int(proc or 0)}", attributes)
    return found[0] if found else None
