"""A DAG file and the files that HTCondor writes next to it, with names that HTCondor chooses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


def _file_with_ending(ending: str) -> cached_property[Path]:
    return cached_property(lambda files: files.dag.with_name(files.dag.name + ending))


@dataclass(frozen=True)
class DagFiles:
    """A DAG file and the files that HTCondor writes next to it."""

    dag: Path

    # DAGMan's submit file, which exists from the first submission on.
    submit = _file_with_ending(".condor.sub")
    # Exists while a DAGMan runs the DAG. A DAGMan that finds it at its start goes into recovery.
    lock = _file_with_ending(".lock")
    nodes_log = _file_with_ending(".nodes.log")  # the events of the nodes' jobs, for recovery
    metrics = _file_with_ending(".metrics")  # how the last DAGMan ended, as JSON
    log = _file_with_ending(".dagman.log")  # the events of the DAGMan job
    # The folder of previous DAGMans' files, out of the way of later DAGMans.
    aside = _file_with_ending(".aside")

    @cached_property
    def node_status(self) -> Path:
        """The file with the states of the DAG nodes, which DAGMan writes every few seconds."""
        return self.dag.with_name("node.status")
