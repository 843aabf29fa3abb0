"""The names of a lane's nodes and trials, and the node of each trial."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache

ALL = sys.maxsize  # `last` of a node that runs all trials of its lane
_NAME = re.compile(r"(?P<lane>.+\.l\d+)(?:\.t(?P<first>\d+)(?:-(?P<last>\d+))?)?")


@dataclass(frozen=True)
class TrialRange:
    """The trials that a node runs, by their numbers in a lane such as `JFK.l1`.

    Numbers count from 1. `last` is `ALL` if the node runs all trials of its lane.
    """

    lane: str
    first: int
    last: int

    def node(self, length: int) -> str:
        """Return the node's name, made from its lane, its only trial, or its first and last trial.

        The number of trials in the lane, `length`, sets the digits of the trials' numbers.
        """
        if self.last == ALL:
            return self.lane
        first = self.name(self.first, length)
        return first if self.first == self.last else f"{first}-{self._digits(self.last, length)}"

    def name(self, number: int, length: int) -> str:
        """Return the name of the trial with this number; `length` is as for `node`."""
        return f"{self.lane}.t{self._digits(number, length)}"

    def has(self, name: str) -> bool:
        """Return whether the node runs the trial of this name."""
        found = range_of(name)
        is_own = found.lane == self.lane and self.first <= found.first <= self.last
        return is_own and found.first == found.last

    @staticmethod
    def _digits(number: int, length: int) -> str:
        return f"{number:0{max(2, len(str(length)))}}"


@lru_cache(maxsize=1 << 16)  # a search for a node's trials parses all names of a region
def range_of(name: str) -> TrialRange:
    """Return the trials of the node with this name, or the trial with this name; else no trials."""
    found = _NAME.fullmatch(name)
    if found is None:
        return TrialRange(name, 1, 0)
    if found["first"] is None:
        return TrialRange(found["lane"], 1, ALL)
    first = int(found["first"])
    return TrialRange(found["lane"], first, int(found["last"] or first))


def is_trial(name: str) -> bool:
    """Return whether a name is a trial's."""
    found = range_of(name)
    return found.first == found.last


def is_lane(name: str) -> bool:
    """Return whether a name is that of a node with several trials."""
    found = range_of(name)
    return found.first < found.last
