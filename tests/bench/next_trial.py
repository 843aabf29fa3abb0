"""The time from a job's next trial with the reference trainer to the trial's first step."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from tests.staying import Stay, make_folder
from tests.unit.tabular.small_trials import copy_trainer, make_table, write_order

TRIALS = 9
ROWS = 1000
PROGRAM = """
import time
from pathlib import Path

import steps
import train

take = steps.PlainSteps.take


def timed(self):
    if not Path("first").exists():
        Path("first").write_text(repr(time.monotonic()))
    take(self)


steps.PlainSteps.take = timed
train.main()
"""


def next_trial(base: Path, *, stays: bool) -> float:
    """Return the median seconds from one trial's end to the next one's first step, on a CPU.

    Args:
        base: a folder to work in.
        stays: one process trains all trials; else each trial has a process.
    """
    base.mkdir()
    job = base / "job"
    job.mkdir()
    copy_trainer(job, kernels=False)
    make_table(job / "r.npz", rows=ROWS)
    waits = []
    stay: Stay | None = None
    for number in range(TRIALS):
        folder = make_folder(base / str(number), job)
        write_order(folder)
        begun = time.monotonic()
        if stay is None:
            command = [sys.executable, "-c", PROGRAM]
            stay = Stay(command, folder, {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(job)})
        else:
            stay.give(folder)
        if stay.read_end() != {"code": 0}:
            raise RuntimeError((folder / "err").read_text())
        waits.append(float((folder / "first").read_text()) - begun)
        if not stays or number == TRIALS - 1:
            stay.leave()
            stay = None
    return statistics.median(waits[1:])
