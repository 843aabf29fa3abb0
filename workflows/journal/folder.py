"""The one place that knows what the daily runs of a study keep beside its runs.

runs/STUDY/daily.db               the journal
runs/STUDY/daily.lock             locked by whoever works on a day; holds that day's date
runs/STUDY/daily.checksums.jsonl  the checksums of the data files that were read
runs/STUDY/daily.start            what the clock starts: `trialfleet daily run STUDY`, here
runs/STUDY/daily.alerts/          events of the days, and who has heard of them
runs/STUDY/daily.study            the path of the study's file, to name it in commands
runs/STUDY/daily.log              what that printed, where HTCondor is the clock
runs/STUDY/DATE                   a day's run; DATE-2 is another attempt at what failed in it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trialfleet.files import shell_quoted_anywhere


@dataclass(frozen=True)
class DailyFolder:
    """The folder of a study's runs. `root` is absolute."""

    root: Path

    @staticmethod
    def of(study: str) -> DailyFolder:
        """Return that of the study of this name, below the working directory."""
        return DailyFolder(Path.cwd() / "runs" / study)

    @property
    def journal(self) -> Path:
        """What became of each region on each day."""
        return self.root / "daily.db"

    @property
    def lock(self) -> Path:
        """Locked by whoever works on a day; holds that day's date."""
        return self.root / "daily.lock"

    @property
    def checksums(self) -> Path:
        """The checksums of the data files that were read."""
        return self.root / "daily.checksums.jsonl"

    @property
    def start(self) -> Path:
        """The program that a clock starts."""
        return self.root / "daily.start"

    @property
    def study(self) -> Path:
        """Holds the path of the study's file, as its days were run last."""
        return self.root / "daily.study"

    @property
    def study_as_typed(self) -> str:
        """The study's file as one types it in a shell; STUDY where that isn't known."""
        try:
            path = self.study.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, ValueError):
            return "STUDY"
        return shell_quoted_anywhere(Path(path)) if path else "STUDY"

    @property
    def log(self) -> Path:
        """What that program printed, where HTCondor is the clock."""
        return self.root / "daily.log"

    @property
    def alerts(self) -> Path:
        """The outbox of the days' events."""
        return self.root / "daily.alerts"

    def run(self, run: str) -> Path:
        """The folder of a run."""
        return self.root / run
