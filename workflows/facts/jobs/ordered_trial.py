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
    """Return the names of the DAG nodes of a region whose jobs train several trials."""
    try:
        names = sorted(os.listdir(files.trials))  # noqa: PTH208 - a Path of each takes longer
    except OSError:
        return []
    ends = ((name, name.rpartition(".")[2]) for name in names)  # most are trials, skipped quickly
    return [name for name, end in ends if (end.startswith("l") or "-" in end) and is_lane(name)]


def current_trial(files: RegionFolder, node: str, unfinished: Collection[str]) -> str | None:
    """Return which of the `unfinished` trials a DAG node's job trains; None if none is left.

    This is the trial that the job's agent was last ordered to train. If there was no order, or if
    the ordered trial has finished, the DAG node's first unfinished trial is returned.
    """
    order, own = read_order(files.trial(node)), parse_trial_range(node)
    mine = [name for name in sorted(unfinished) if name == node or own.has(name)]
    return order.name if order and order.name in mine else next(iter(mine), None)


def ordered_trial(files: RegionFolder, node: str) -> TrialFolder:
    """Return the folder of the trial that a DAG node's job was last ordered to train.

    If the order was for the full training or the gate, return the folder of this step. If the job
    has no order, or can train only one trial, return the DAG node's own folder.
    """
    place = files.node_folder(node)
    order = read_order(place)
    if order is None or order.trial is None or not is_lane(node):
        return place
    return find_trained_trial(files, node, order.name) or place


def find_trained_trial(files: RegionFolder, node: str, name: str) -> TrialFolder | None:
    """Return the folder of the trial `name` if a job of the DAG node can train it; else None.

    `name` may also be "best" (the full training) or "gate". Then the result is never None.
    """
    for step in (files.best, files.gate):
        if step.root.name == name:
            return in_lane(files, step, node)
    return files.trial(name) if parse_trial_range(node).has(name) else None


def in_lane(files: RegionFolder, step: TrialFolder, node: str) -> TrialFolder:
    """Return the paths of the full training or gate `step` when it runs in the lane `node`."""
    return TrialFolder(step.root, files.trial(node).node_root)


def find_lane(files: RegionFolder, step: TrialFolder) -> str | None:
    """Return the DAG node of the lane that runs `step`, or None if no lane runs it."""
    if not os.path.lexists(step.by_lane):
        return None
    most = untrusted_files.MOST_NOTES
    node = unless_damaged(lambda: untrusted_files.read_json(step.by_lane, most)["node"], None)
    return next((name for name in shared_nodes(files) if name == node), None)


def end_place(files: RegionFolder, step: TrialFolder) -> TrialFolder:
    """Return the paths of the full training or gate `step` and of its job, perhaps a lane's."""
    lane = find_lane(files, step)
    return in_lane(files, step, lane) if lane else step


def has_checkpoint(place: TrialFolder) -> bool:
    """Return whether a trial's last checkpoint package has a checkpoint, and not only reports."""
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
    except (OSError, tarfile.TarError, ValueError):
        return False
