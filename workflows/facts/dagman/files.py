"""Facts from DAGMan's files: how DAGMan ended, and the states of the DAG nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from trialfleet import untrusted_files
from trialfleet.classads import plain_attributes
from trialfleet.files import read_json, unless_damaged
from trialfleet.workflows.facts.jobs.executions import read_events, split_events
from trialfleet.workflows.facts.jobs.trial_marks import EVENT_ENDS
from trialfleet.workflows.facts.run_folder.folder import DagFiles

_BEFORE_AD, _OF_NODE = re.compile(r"\n(?=\[)"), '"NodeStatus"'  # in a node status file
# STATUS_PRERUN, _SUBMITTED, _POSTRUN, _ERROR of a node status file
_PRE, _SUBMITTED, _POST, _FAILED = 2, 3, 4, 6
_EVENT = re.compile(rb"\d{3} \(")  # the beginning of an event of a job's log
_SUBMIT = re.compile(rb'000 \(.*?DAGNodeName = "([^"\n]+)"', re.DOTALL)
_POST_ENDED = re.compile(
    rb"016 \((?P<job>-?\d+)\S* (?P<time>\S+ [\d:]+).*DAG Node: (?P<node>[^\n]+)", re.DOTALL
)
STOP_REASON = "trialfleet stop"  # the reason with which this command removes jobs
# The beginning of a node's details if DAGMan was removed before the node ended.
_WAS = "Was STATUS_"
# DAG_STATUS_ERROR, _NODE_FAILED of a metrics file: DAGMan itself failed, or a node failed.
_ENDED_BY_ERROR, _ENDED_BY_NODE = 1, 2


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A DAG node's state, as DAGMan last wrote it.

    Attributes:
        submitted: whether DAGMan waits for the node's job.
        failed: whether the node has failed for good.
        details: DAGMan's text about the state.
    """

    submitted: bool
    in_pre: bool = False
    in_post: bool = False
    failed: bool
    details: str

    @property
    def was_cut_off(self) -> bool:
        """True if the DAG node failed only because its DAGMan was removed from the queue."""
        return self.failed and self.details.startswith(_WAS)


def exit_code(files: DagFiles) -> int | None:
    """Return the exit code of the DAG's last DAGMan that ended by itself; None if none did."""
    return _metric(files, "exitcode")


def ended_by_error(files: DagFiles) -> bool:
    """Return whether the DAG's last DAGMan ended because of an error of its own."""
    return _metric(files, "DagStatus") == _ENDED_BY_ERROR


def ended_by_node(files: DagFiles) -> bool:
    """Return whether the DAG's last DAGMan ended because a DAG node had failed."""
    return _metric(files, "DagStatus") == _ENDED_BY_NODE


def removal(files: DagFiles) -> str | None:
    """Return why the DAGMan job was removed; None if the last event in its log isn't a removal."""
    events = read_events(files.log)
    if not events or events[-1].kind != "JOB_ABORTED":
        return None
    return str(events[-1].get("Reason") or "no reason given")


def _metric(files: DagFiles, name: str) -> int | None:
    return unless_damaged(lambda: int(read_json(files.metrics)[name]), None)


def read_node_status(path: Path) -> dict[str, NodeStatus]:
    """Return the states in DAGMan's status file, by DAG node; empty if the file can't be read."""
    try:
        stamp = untrusted_files.file_stamp(path)
        return _parse_nodes(path, stamp) if any(stamp) else {}
    except OSError:
        return {}


@lru_cache(maxsize=1 << 12)  # the files of a large run's DAGMans
def _parse_nodes(path: Path, _changed: tuple[int, int]) -> dict[str, NodeStatus]:
    import classad2

    try:
        ads = _BEFORE_AD.split(path.read_text())
        return dict(_parse_node(ad) for ad in ads if _OF_NODE in ad)
    except (ValueError, classad2.ClassAdException):
        return {}


@lru_cache(maxsize=1 << 13)  # DAGMan rewrites its file often, and most ads stay the same
def _parse_node(ad: str) -> tuple[str, NodeStatus]:
    import classad2

    found = plain_attributes(classad2.ClassAd(ad))
    status = found["NodeStatus"]
    return str(found["Node"]), NodeStatus(
        submitted=status == _SUBMITTED,
        in_pre=status == _PRE,
        in_post=status == _POST,
        failed=status == _FAILED,
        details=str(found.get("StatusDetails", "")),
    )


@dataclass(frozen=True, kw_only=True)
class NodesLog:
    """The contents of a log of node events, from which DAGMan learns that jobs and scripts ended.

    Attributes:
        ended: DAG nodes whose POST script ended while the present DAGMan ran.
        ended_twice: nodes in `ended` whose POST script ended twice for the same job. DAGMan
            ignores the second end (docs/dagman-recovery.md, section 3).
        is_damaged: whether a part of the log is not a complete event. DAGMan may then ignore all
            later events.
    """

    ended: frozenset[str]
    ended_twice: frozenset[str]
    is_damaged: bool


def read_nodes_log(nodes_log: Path, since: float) -> NodesLog:
    """Return the contents of a log of node events; an unreadable log counts as empty.

    `since` is the start of the present DAGMan, in Unix seconds. `ended` has only scripts that ended
    after this time, because the present DAGMan read about earlier ends when it started.
    """
    jobs: dict[str, bytes] = {}  # by node: the job whose POST script ended last
    ended: dict[str, bool] = {}  # by node: whether it ended twice
    try:
        content = nodes_log.read_bytes()
    except OSError:
        content = b""
    events = split_events(content)
    for event in events:
        if submitted := _SUBMIT.match(event):
            node = submitted[1].decode()
            jobs.pop(node, None)
            ended.pop(node, None)
        elif post := _POST_ENDED.match(event):
            node, job = post["node"].decode(), post["job"]
            if _unix_seconds(post["time"].decode()) >= since:
                ended[node] = ended.get(node, False) or jobs.get(node) == job
            if not job.startswith(b"-"):  # a number below 0 means that there was no job
                jobs[node] = job
    twice = frozenset(node for node, is_second in ended.items() if is_second)
    damaged = not all(map(_EVENT.match, events)) or len(events) != content.count(EVENT_ENDS)
    return NodesLog(ended=frozenset(ended), ended_twice=twice, is_damaged=damaged)


def _unix_seconds(local: str) -> float:
    """Return a local time in Unix seconds.

    At the end of summer time, clocks show some times twice. The second of these moments counts.
    """
    return datetime.fromisoformat(local).replace(fold=1).timestamp()
