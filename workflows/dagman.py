"""What DAGMan leaves in files: how it ended, and where its nodes stand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trialfleet.workflows.folder import DagFiles

NODE_FAILED = 6  # STATUS_ERROR in a node status file


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A node as DAGMan last wrote it."""

    failed: bool
    details: str


def exit_code(files: DagFiles) -> int | None:
    """Return the exit code of the last DAGMan that ended by itself; None if none has."""
    try:
        return int(json.loads(files.metrics.read_text())["exitcode"])
    except (OSError, ValueError, KeyError):
        return None


def read_node_status(path: Path) -> dict[str, NodeStatus]:
    """Return the nodes of a node status file by name; empty while there is none."""
    import classad2

    try:
        ads = list(classad2.parseAds(path.read_text()))
    except (OSError, ValueError, classad2.ClassAdException):
        return {}  # DAGMan replaces it every few seconds
    return {
        str(ad["Node"]): NodeStatus(
            failed=ad["NodeStatus"] == NODE_FAILED, details=str(ad.get("StatusDetails", ""))
        )
        for ad in ads
        if ad.get("Type") == "NodeStatus"
    }
