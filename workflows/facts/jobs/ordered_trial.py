"""Jobs that train several trials: the current trial of each job, and the trials' folders."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Collection
from itertools import islice

from trialfleet import nodes, untrusted_files
from trialfleet.files import unless_damaged
from trialfleet.workflows.facts.jobs.agent_messages import read_order
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.trial_names import is_lane, parse_trial_range


def shared_nodes(files: RegionFolder) -> list[str]:
    """Return the names of a region's DAG nodes whose jobs train several trials."""
    try:
        names = sorted(os.listdir(files.trials))  # noqa: PTH208 - a Path of each takes longer
    except OSError:
        return []
    ends = ((name, name.rpartition(".")[2]) for name in names)  # most are trials, skipped quickly
    return [name for name, end in ends if (end.startswith("l") or "-" in end) and is_lane(name)]


def current_trial(files: RegionFolder, node: str, unfinished: Collection[str]) -> str | None:
    """Return which of the `unfinished` trials a DAG node's job trains.

    This is the trial that the job's agent was last ordered to train. If there was no order, or if
    that trial has finished, it is the first unfinished trial of the DAG node. Return None if the
    DAG node has no unfinished trial.
    """
    order, own = read_order(files.trial(node)), parse_trial_range(node)
    mine = [name for name in sorted(unfinished) if name == node or own.has(name)]
    return order.name if order and order.name in mine else next(iter(mine), None)


def ordered_trial(files: RegionFolder, node: str) -> TrialFolder:
    """Return the folder of the trial that a DAG node's job trains according to its last order.

    If a lane's job runs the full training or the gate, return the folder of this training or gate.
    If the job has no order, or can run only one trial, return the DAG node's own folder.
    """
    place = files.node_folder(node)
    order = read_order(place)
    if order is None or order.trial is None or not is_lane(node):
        return place
    return find_trained_trial(files, node, order.name) or place


def find_trained_trial(files: RegionFolder, node: str, name: str) -> TrialFolder | None:
    """Return the folder of `name` if the job of the DAG node `node` can run it; otherwise None.

    `name` is a trial, "best" (the full training) or "gate". Full training and gate may run in the
    job of any lane, so for them the result is never None.
    """
    steps = (step for step in (files.best, files.gate) if step.root.name == name)
    if step := next(steps, None):
        return in_lane(files, step, node)
    return files.trial(name) if parse_trial_range(node).has(name) else None


def in_lane(files: RegionFolder, step: TrialFolder, node: str) -> TrialFolder:
    """Return the paths of `step`, a full training or gate that runs in the job of a lane.

    `node` is the DAG node of the lane. The job's files are in the folder of this DAG node.
    """
    return TrialFolder(step.root, files.trial(node).node_root)


def find_lane(files: RegionFolder, step: TrialFolder) -> str | None:
    """Return the DAG node of the lane whose job runs or ran `step`, a full training or gate.

    Return None if no lane's job runs or ran it.
    """
    if not os.path.lexists(step.by_lane):
        return None
    most = untrusted_files.MOST_NOTES
    node = unless_damaged(lambda: untrusted_files.read_json(step.by_lane, most)["node"], None)
    return next((name for name in shared_nodes(files) if name == node), None)


def end_place(files: RegionFolder, step: TrialFolder) -> TrialFolder:
    """Return the paths of `step`, a full training or gate, and of the job that runs it.

    This job is a lane's job, or a separate job for this step.
    """
    lane = find_lane(files, step)
    return in_lane(files, step, lane) if lane else step


def has_checkpoint(place: TrialFolder) -> bool:
    """Return whether a trial's last checkpoint package contains a checkpoint, not only reports."""
    try:
        with (
            untrusted_files.open_regular(place.saved) as file,
            tarfile.open(fileobj=file, mode="r:") as tar,
        ):
            members = islice(tar, untrusted_files.MOST_NAMES)
            return any(
                not one.isdir() and one.name.removeprefix("./").startswith(f"{nodes.CHECKPOINT}/")
                for one in members
            )
    except (OSError, tarfile.TarError):
        return False
