"""Agents' waiting times for the next order, by the times of files of agents and service."""

from __future__ import annotations

import json
from contextlib import suppress

from trialfleet import Run, untrusted_files
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder


class Answers:
    """The answers of a run; each is found if `look` is called before the job's next question."""

    def __init__(self, run: Run) -> None:
        folder = RunFolder(run.folder)
        self._places = [
            TrialFolder(path)
            for region in folder.regions.iterdir()
            for path in folder.region(region.name).trials.iterdir()
            if path.name.rpartition(".")[2].startswith("l")  # a lane
        ]
        self._seconds: dict[tuple[str, str, int], float] = {}

    def look(self) -> None:
        """Record the new answers."""
        for place in self._places:
            with suppress(OSError, ValueError, LookupError):
                said, order = (path.stat().st_mtime for path in (place.said, place.order))
                words = json.loads(
                    untrusted_files.read_bytes(place.order, untrusted_files.MOST_NOTES)
                )
                asked = json.loads(
                    untrusted_files.read_bytes(place.said, untrusted_files.MOST_NOTES)
                )
                key = (place.root.name, words["token"], words["turn"])
                if words["token"] and (asked["token"], asked["turn"]) == key[1:]:
                    self._seconds.setdefault(key, order - said)

    def as_text(self) -> str:
        """Median and shares, in milliseconds; a file's time is exact to 4 ms."""
        found = sorted(self._seconds.values())
        if not found:
            return "none seen"
        within = [1e3 * found[int(share * len(found))] for share in (0.5, 0.9, 0.99)]
        return (
            f"median {within[0]:.0f} ms, 90 % within {within[1]:.0f}, 99 % within {within[2]:.0f}, "
            f"of {len(found)} that were seen"
        )
