"""The runs that the page shows, which are those in `./runs` or one named run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.lookup import RUNS, FoundRun, find_run, runs_here
from trialfleet.workflows.status.status_reader import open_run

_LOOK_EVERY = 2.0  # seconds between two looks at which run is the newest


@dataclass(frozen=True)
class KnownRun:
    """A run, and its name in URLs."""

    key: str
    folder: RunFolder


class Runs:
    """Finds runs by their names in URLs.

    A text from a URL never becomes part of a path, because it is only compared with the names of
    existing runs. `named` is the folder of the only run to show. If it is None, all runs in
    `./runs` are shown.
    """

    def __init__(self, named: Path | None = None) -> None:
        opened = open_run(named) if named else None
        self._only = KnownRun(opened.root.name, opened) if opened else None
        self._looked = float("-inf")
        self._newest: KnownRun | None = None

    @property
    def is_single(self) -> bool:
        """True if only one run is shown."""
        return self._only is not None

    def newest(self) -> KnownRun:
        """Return the run that the start page shows, or raise InputError if no run exists yet."""
        if self._only:
            return self._only
        if self._newest is None or time.monotonic() - self._looked >= _LOOK_EVERY:
            place = find_run(None)
            listed = next(run for run in runs_here() if run.folder == place)
            self._newest = KnownRun(run_key(listed), open_run(place))
            self._looked = time.monotonic()
        return self._newest

    def find(self, key: str) -> KnownRun:
        """Return the run called `key` in URLs, or raise InputError if there is none."""
        for known in (self._only, self._newest):
            if known and known.key == key:
                return known
        for run in self.all():
            if run_key(run) == key:
                return KnownRun(key, open_run(run.folder))
        raise InputError(f"this page has no run {key!r}; choose one from the list of runs")

    def newest_of_each(self) -> dict[str, Path]:
        """Return the folder of each study's newest run, or of the only run that is shown.

        A submitted run counts as newer than any run that is only planned.
        """
        if self._only:
            return {self._only.folder.root.parent.name: self._only.folder.root}
        found: dict[str, FoundRun] = {}
        for run in runs_here():
            known = found.setdefault(run.study, run)
            if run.is_readable and run.submitted and not known.submitted:
                found[run.study] = run
        return {study: run.folder for study, run in found.items()}

    def daily_folders(self) -> list[DailyFolder]:
        """Return the folder of each shown study, even if the study has no daily runs."""
        if self._only:
            return [DailyFolder(self._only.folder.root.parent)]
        return [DailyFolder(place) for place in sorted(RUNS.absolute().glob("*"))]

    def all(self) -> list[FoundRun]:
        """Return the runs in `./runs`, newest first, or none if only a named run is shown."""
        return [] if self._only else runs_here()


def run_key(run: FoundRun) -> str:
    """Return a run's name in URLs, STUDY~RUN, which has no slash."""
    return run.name.replace("/", "~")
