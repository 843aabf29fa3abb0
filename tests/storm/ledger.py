"""The ledger, in which a storm's trainers write when trials begin and end; repeated trainings.

A trial whose result has arrived must not be trained again. Two sources show whether one was: the
marks in the jobs' logs, and the ledger together with the agents' messages.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.storm.words import Word
from trialfleet.workflows.names import region_slug

# The access point's marks of a trial in its job's log.
MARK = re.compile(r"^008 .*trialfleet: (\S+) (begins|ends)(?: code=(-?\d+))?", re.MULTILINE)

Name = tuple[str, str]  # a region's slug, and a trial of it


@dataclass
class Times:
    """When a trial began and ended in a trainer, by `time.monotonic`."""

    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


def read_ledger(ledger: Path) -> dict[Name, Times]:
    """Return what the trainers of a run wrote into the ledger, by trial."""
    found: dict[Name, Times] = defaultdict(Times)
    for text in ledger.read_text().splitlines() if ledger.exists() else ():
        line = json.loads(text)
        times = found[region_slug(line["region"]), line["trial"]]
        (times.begins if line["what"] == "begins" else times.ends).append(line["time"])
    return dict(found)


def trained_again(ledger: dict[Name, Times], words: Iterable[Word]) -> set[Name]:
    """Return the trials that were trained again although their good result had arrived.

    Args:
        ledger: when the trials began and ended in their trainers.
        words: the messages of their jobs' agents.
    """
    done: dict[Name, float] = {}
    for word in words:
        if word.moment in {"arrived", "told"} and word.code == 0:
            done.setdefault((word.region, word.trial), word.time)
    last = {name: max(times.begins, default=-math.inf) for name, times in ledger.items()}
    return {name for name, at in last.items() if at > done.get(name, math.inf)}


def begun_again(log: str) -> set[str]:
    """Return the trials that, by a job's log, began again after they had ended well."""
    ended: set[str] = set()
    found = set()
    for trial, kind, code in MARK.findall(log):
        if kind == "begins" and trial in ended:
            found.add(trial)
        elif kind == "ends" and code == "0":
            ended.add(trial)
    return found


def begins(log: str) -> int:
    """Return how often any trial begins in a job's log."""
    return sum(kind == "begins" for _, kind, _ in MARK.findall(log))
