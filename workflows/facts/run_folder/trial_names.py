"""The names of DAG nodes and trials. A region's trials are divided into sequences, called lanes."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache

ALL = sys.maxsize  # `last` of a node that runs all trials of its lane
_NAME = re.compile(r"(?P<lane>.+\.l\d+)(?:\.t(?P<first>\d+)(?:-(?P<last>\d+))?)?")


@dataclass(frozen=True)
class TrialRange:
    """The trials of a DAG node, by their numbers in a lane such as `JFK.l1`.

    Numbers count from 1. `last` is `ALL` if the DAG node has all trials of its lane.
    """

    lane: str
    first: int
    last: int

    def node(self, length: int) -> str:
        """Return the DAG node's name, such as `JFK.l1.t05-08` for trials 5 to 8 of a lane.

        The name is `JFK.l1` if the DAG node has all trials of its lane, and `JFK.l1.t05` if it has
        one trial. `length` is the number of trials in the lane.
        """
        if self.last == ALL:
            return self.lane
        first = self.name(self.first, length)
        return first if self.first == self.last else f"{first}-{self._padded(self.last, length)}"

    def name(self, number: int, length: int) -> str:
        """Return the name of the trial `number`; `length` is the number of trials in its lane."""
        return f"{self.lane}.t{self._padded(number, length)}"

    def has(self, name: str) -> bool:
        """Return whether the trial `name` is one of the DAG node's trials."""
        found = parse_trial_range(name)
        is_own = found.lane == self.lane and self.first <= found.first <= self.last
        return is_own and found.first == found.last

    @staticmethod
    def _padded(number: int, length: int) -> str:
        return f"{number:0{max(2, len(str(length)))}}"


@lru_cache(maxsize=1 << 16)  # a search for a node's trials parses all names of a region
def parse_trial_range(name: str) -> TrialRange:
    """Return the trials of the DAG node or trial `name`; an empty range for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return TrialRange(name, 1, 0)
    if found["first"] is None:
        return TrialRange(found["lane"], 1, ALL)
    first = int(found["first"])
    return TrialRange(found["lane"], first, int(found["last"] or first))


def is_trial(name: str) -> bool:
    """Return whether `name` is the name of a trial."""
    found = parse_trial_range(name)
    return found.first == found.last


def is_lane(name: str) -> bool:
    """Return whether `name` is a DAG node that may have several trials.

    Examples are `JFK.l1`, with all trials of its lane, and `JFK.l1.t05-08`.
    """
    found = parse_trial_range(name)
    return found.first < found.last
