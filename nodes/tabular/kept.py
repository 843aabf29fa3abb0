"""What a process that trains one trial after another keeps of a table: its rows, where they lie.

One table, the last: a job has no other. Nothing that trains changes the rows, so a trial that finds
them here has the bits that it would have read.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, loader, settings

_last: dict[object, dataset.Dataset] = {}  # the last table, by all that it depends on


def rows_of(t: trial.Trial, chosen: settings.Settings, device: torch.device) -> dataset.Dataset:
    """Return the region's rows, on the device if there is room; read anew only where they differ.

    Args:
        t: the trial.
        chosen: its settings.
        device: where it trains.
    """
    share = dataset.share_of(t, chosen)
    key = (*map(_state_of, t.data), share)
    data = _last.pop(key, None)
    _last.clear()  # before another table takes its memory
    if data is None:
        data = dataset.load(t, chosen)
    if data.train.target.device != device:
        data = loader.place(data, device, t.gpu_share)
    _last[key] = data
    return data


def _state_of(path: Path) -> tuple[str, int, int, int, int]:
    """Return what tells a file from another, and from itself at another time."""
    found = path.stat()
    return os.path.realpath(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
