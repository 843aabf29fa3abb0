"""What DAGMan leaves in files: how it ended, and where its nodes stand."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet.classads import plain
from trialfleet.workflows.plan.dag_files import DagFiles

_SUBMITTED, _FAILED = 3, 6  # STATUS_SUBMITTED and STATUS_ERROR of a node status file
_JOB_ABORTED = b"009"  # the number of the event in a job's log
_TAIL_BYTES = 4096
STOP_REASON = "trialfleet stop"  # with which it removes jobs
_WAS = "Was STATUS_"  # how DAGMan's details of a node begin that had not ended when it was removed
_ENDED_BY_ERROR = 1  # DAG_STATUS_ERROR of a metrics file: DAGMan itself could not go on


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A node as DAGMan last wrote it.

    Attributes:
        submitted: DAGMan waits for the end of its job.
        failed: it failed for good.
        details: why.
    """

    submitted: bool
    failed: bool
    details: str

    @property
    def was_cut_off(self) -> bool:
        """Whether it failed only because its DAGMan was removed."""
        return self.failed and self.details.startswith(_WAS)


def exit_code(files: DagFiles) -> int | None:
    """Return the exit code of the last DAGMan that ended by itself; None if none has."""
    return _metric(files, "exitcode")


def ended_by_error(files: DagFiles) -> bool:
    """Whether the last DAGMan gave up because of an error of its own, not of a node's."""
    return _metric(files, "DagStatus") == _ENDED_BY_ERROR


def was_removed(files: DagFiles) -> bool:
    """Whether the last that happened to the DAGMan job is that somebody removed it.

    From the log's end: htcondor2's reader would read all of it at each look at a run.
    """
    events = re.findall(rb"^(\d{3}) \(", _end_of_log(files), re.MULTILINE)
    return bool(events) and events[-1] == _JOB_ABORTED


def was_stopped(files: DagFiles) -> bool:
    """Whether the last that happened to the DAGMan job is that `trialfleet stop` removed it."""
    last = re.split(rb"^\.\.\.\n(?=\d{3} \()", _end_of_log(files), flags=re.MULTILINE)[-1]
    return last.startswith(_JOB_ABORTED) and STOP_REASON.encode() in last


def _end_of_log(files: DagFiles) -> bytes:
    try:
        with files.log.open("rb") as log:
            log.seek(max(0, files.log.stat().st_size - _TAIL_BYTES))
            return log.read()
    except OSError:
        return b""


def _metric(files: DagFiles, name: str) -> int | None:
    try:
        return int(json.loads(files.metrics.read_text())[name])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_node_status(path: Path) -> dict[str, NodeStatus]:
    """Return the nodes of a node status file by name; empty while there is none."""
    import classad2

    try:
        ads = [plain(ad) for ad in classad2.parseAds(path.read_text())]
    except (OSError, ValueError, classad2.ClassAdException):
        return {}  # DAGMan replaces it every few seconds
    return {str(ad["Node"]): _node(ad) for ad in ads if ad.get("Type") == "NodeStatus"}


def _node(ad: Any) -> NodeStatus:
    return NodeStatus(
        submitted=ad["NodeStatus"] == _SUBMITTED,
        failed=ad["NodeStatus"] == _FAILED,
        details=str(ad.get("StatusDetails", "")),
    )
