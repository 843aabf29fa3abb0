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
from trialfleet.workflows.study.frozen import load_frozen

LOOK_SECONDS = 5.0
ASK_SECONDS = 30.0  # between two checks whether the run is over
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 900.0  # seconds after a failed try; doubled each time
GIVEN_UP = 24 * 3600.0  # seconds after the run's end

log = logging.getLogger(__name__)


class Exporter:
    """Copies a study's models after each change, and tries again after a failure."""

    def __init__(
        self, folder: ExportFolder, targets: Targets, may: Callable[[], bool] = lambda: True
    ) -> None:
        """Prepare exports, which `poll` does only while `may` returns True."""
        self._folder, self._targets, self._may = folder, targets, may
        self._done: object = None
        self._pause = 0.0
        self._due = 0.0

    def poll(self, now: float) -> bool:
        """Export the models if they have changed; return whether all are exported.

        After a failure, nothing is exported for a while. `now` is in monotonic seconds.
        """
        before = self._folder.signature()
        if before == self._done:
            return True
        if now < self._due:
            return False
        with self._folder.hold_lock(wait=False) as ours:
            if not (ours and self._may()):
                return False
            problems = export_all(self._folder, self._targets, log.info)
        if problems:
            self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
            self._due = now + self._pause
            return False
        self._pause, self._done = 0.0, before
        return self._folder.signature() == before


def watch(folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
    """Export a run's models until the run is over and all models are exported.

    Return at the latest a day after the run's end. Return at once if the study exports nothing, or
    if another process exports the run's models. TrialfleetError if the run's folder can't be read.
    """
    frozen = load_frozen(folder.study)
    study = frozen.study
    targets = export_targets(study, read_variables(folder.export_variables))
    if targets is None:
        return
    with ExportFolder(folder.export).hold_lock(wait=False) as ours:
        if ours:
            exports = ExportFolder.for_study(study)
            exporter = Exporter(exports, targets, lambda: is_taken_over(frozen, folder) is False)
            _export_until_end(folder, exporter, targets, clock)


def _export_until_end(
    folder: RunFolder, exporter: Exporter, targets: Targets, clock: Callable[[], float]
) -> None:
    os.environ.update(targets.variables)
    reader = StatusReader(folder, brief=True)
    ended: float | None = None
    asked = -ASK_SECONDS
    while folder.study.exists():
        # The run's end is looked up before the export, so that the last export has all models.
        if clock() - asked >= ASK_SECONDS:
            asked = clock()
            ended = (ended or clock()) if reader.state() not in UNDER_WAY else None
        all_there = exporter.poll(clock())
        if ended is not None and (all_there or clock() - ended > GIVEN_UP):
            return
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Export a run's models until the run is over."""
    for noisy in ("botocore", "boto3", "urllib3", "s3transfer"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    be_watcher(lambda run: watch(RunFolder(run)), main.__doc__)
