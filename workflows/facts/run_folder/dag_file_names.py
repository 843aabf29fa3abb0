"""A DAG file and HTCondor's files next to it. HTCondor chooses their names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


def _beside(ending: str) -> cached_property[Path]:
    """Return a property for a path next to the DAG file."""
    return cached_property(lambda files: files.dag.with_name(files.dag.name + ending))


@dataclass(frozen=True)
class DagFiles:
    """A DAG file and HTCondor's files next to it."""

    dag: Path

    # The submit file of its DAGMan: there since it was first submitted.
    submit = _beside(".condor.sub")
    # There while a DAGMan runs it; one that finds it at its start goes into recovery.
    lock = _beside(".lock")
    nodes_log = _beside(".nodes.log")  # the events of its nodes' jobs: what recovery reads
    metrics = _beside(".metrics")  # how its last DAGMan ended, as JSON
    log = _beside(".dagman.log")  # the events of its DAGMan job
    # The folder of previous DAGMans' files, set aside so that no other reads them.
    aside = _beside(".aside")

    @cached_property
    def node_status(self) -> Path:
        """The file with the states of the nodes; DAGMan writes it every few seconds."""
        return self.dag.with_name("node.status")
