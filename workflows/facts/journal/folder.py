"""The names of the files of a study's daily runs, in runs/STUDY.

The folder of a day's first attempt is named DATE. The folder of the second attempt is named DATE-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trialfleet.files import shell_quoted_anywhere, unless_damaged
from trialfleet.workflows.facts.run_folder.folder import path_property


@dataclass(frozen=True)
class DailyFolder:
    """The folder of a study's daily runs; `root` is its absolute path."""

    root: Path

    @staticmethod
    def for_study(study: str) -> DailyFolder:
        """Return the folder of the daily runs of `study`, below the working directory."""
        return DailyFolder(Path.cwd() / "runs" / study)

    journal = path_property("daily.db")  # the outcome of each region on each day
    log = path_property("daily.log")
    # Locked by the process that works on a day; has that day's date.
    lock = path_property("daily.lock")
    checksums = path_property("daily.checksums.jsonl")  # of the data files that were read
    # The program that a timer starts each day: `trialfleet daily run STUDY`. If HTCondor is the
    # timer, the program's output is in `log`.
    start = path_property("daily.start")
    study = path_property("daily.study")  # the path of the study's file in the last daily run
    alerts = path_property("daily.alerts")  # the outbox of the days' events
    # The program that sends the waiting events, `trialfleet notify send`, and its output in
    # HTCondor's job.
    send = path_property("daily.send")
    send_log = path_property("daily.send.log")

    @property
    def study_as_typed(self) -> str:
        """The path of the study's file, quoted for a shell; "STUDY" if it is unknown."""
        text = unless_damaged(lambda: self.study.read_text(encoding="utf-8"), "")
        path = text.removesuffix("\n")
        return shell_quoted_anywhere(Path(path)) if path else "STUDY"

    def run(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.root / run
