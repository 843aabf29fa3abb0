"""The program `export FOLDER`, which exports a run's models when they are published.

The program ends when the run is over and all models are exported, or a day after the run's end. The
next run, or `trialfleet export`, exports the models that are left.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from trialfleet.workflows.control.dagman.alert_and_export_processes import be_watcher
from trialfleet.workflows.control.export.export_pass import export_all
from trialfleet.workflows.facts.models.export_folder import (
    ExportFolder,
    Targets,
    export_targets,
    read_variables,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import is_taken_over
from trialfleet.workflows.status.status_reader import StatusReader
from trialfleet.workflows.status.status_types import UNDER_WAY
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen

LOOK_SECONDS = 5.0
ASK_SECONDS = 30.0  # between two checks whether the run is over
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 900.0  # seconds after a failed try; doubled each time
GIVEN_UP = 24 * 3600.0  # seconds after the run's end

log = logging.getLogger(__name__)


def watch(folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
    """Export a run's models until the run is over and all models are exported.

    Return at the latest a day after the run's end. Return at once if the study exports nothing, or
    if another process exports the run's models. TrialfleetError if the run's folder can't be read.
    """
    frozen = load_frozen(folder.study)
    targets = export_targets(frozen.study, read_variables(folder.export_variables))
    if targets is None:
        return
    with ExportFolder(folder.export).hold_lock(wait=False) as ours:
        if ours:
            os.environ.update(targets.variables)
            _export_until_end(folder, frozen, targets, clock)


def _export_until_end(
    folder: RunFolder, frozen: FrozenStudy, targets: Targets, clock: Callable[[], float]
) -> None:
    exports, reader = ExportFolder.for_study(frozen.study), StatusReader(folder, brief=True)
    exported: object = None  # the signature of the models that all targets have
    ended: float | None = None
    pause, due, asked = 0.0, 0.0, -ASK_SECONDS
    while folder.study.exists():
        # The run's end is looked up before the export, so that the last export has all models.
        if clock() - asked >= ASK_SECONDS:
            asked = clock()
            ended = (ended or clock()) if reader.state() not in UNDER_WAY else None
        before = exports.signature()
        if before != exported and clock() >= due:
            problems = _export(exports, targets, frozen, folder)
            if problems:
                pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
                due = clock() + pause
            elif problems is not None:
                pause, exported = 0.0, before
        if ended is not None and (exports.signature() == exported or clock() - ended > GIVEN_UP):
            return
        time.sleep(LOOK_SECONDS)


def _export(
    exports: ExportFolder, targets: Targets, frozen: FrozenStudy, folder: RunFolder
) -> dict[str, str] | None:
    """Export all models; return each target's problem. None if another process does this now.

    Also return None if another manager has taken over the run.
    """
    with exports.hold_lock(wait=False) as ours:
        may = ours and is_taken_over(frozen, folder) is False
        return export_all(exports, targets, log.info) if may else None


def main() -> None:
    """Export a run's models until the run is over."""
    for noisy in ("botocore", "boto3", "urllib3", "s3transfer"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    be_watcher(lambda run: watch(RunFolder(run)), main.__doc__)
