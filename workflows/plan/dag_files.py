"""A DAG file and what HTCondor writes beside it: names of its own choice, not ours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class DagFiles:
    """A DAG file and what HTCondor writes beside it."""

    dag: Path

    @cached_property
    def submit(self) -> Path:
        """The submit file of its DAGMan: there since it was first submitted."""
        return self._beside(".condor.sub")

    @cached_property
    def lock(self) -> Path:
        """There while a DAGMan runs it; one that finds it at its start goes into recovery."""
        return self._beside(".lock")

    @cached_property
    def nodes_log(self) -> Path:
        """The events of its nodes' jobs: what recovery reads."""
        return self._beside(".nodes.log")

    @cached_property
    def metrics(self) -> Path:
        """How its last DAGMan ended, as JSON."""
        return self._beside(".metrics")

    @cached_property
    def log(self) -> Path:
        """The events of its DAGMan job."""
        return self._beside(".dagman.log")

    @cached_property
    def node_status(self) -> Path:
        """Where its nodes stand; DAGMan writes it every few seconds."""
        return self.dag.with_name("node.status")

    @cached_property
    def aside(self) -> Path:
        """The folder of what former DAGMans left, set aside so that no other reads it."""
        return self._beside(".aside")

    def _beside(self, ending: str) -> Path:
        return self.dag.with_name(self.dag.name + ending)
