"""Faults that a storm must not cause: trials lost, doubled or wrong, regions without a model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.storm.ledger import begins, begun_again, read_ledger, trained_again
from tests.storm.words import Word
from trialfleet import Run, RunState

BEST_X = 0.3  # the trainer's loss is (x - BEST_X)²


@dataclass
class Audit:
    """Faults found in some runs (the first seven numbers), and counts of what was done.

    Attributes:
        lost: trials of the budget for which no value is stored.
        doubled: numbers or DAG nodes that two trials have, and numbers left out.
        wrong: values, or published models, that don't follow from the parameters.
        repeated: trials that were trained again after their good result had arrived.
        unpublished: regions without a model.
        unended: runs that did not end by themselves.
        persons: how often a person was needed.
        evidence: each fault in words.
        trials: number of recorded trials.
        stopped: how many of them were stopped early.
        trainings: number of trainings of trials and full trainings, repetitions included.
        repairs: the supervisor's repairs, by fault.
    """

    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    repeated: int = 0
    unpublished: int = 0
    unended: int = 0
    persons: int = 0
    evidence: list[str] = field(default_factory=list)
    trials: int = 0
    stopped: int = 0
    regions: int = 0
    runs: int = 0
    trainings: int = 0
    repairs: Counter[str] = field(default_factory=Counter)

    FAULTS = ("lost", "doubled", "wrong", "repeated", "unpublished", "unended", "persons")

    @property
    def is_clean(self) -> bool:
        """True if no fault was found."""
        return not any(getattr(self, name) for name in self.FAULTS)

    def add(self, run: Run, words: Iterable[Word] = (), ledger: Path | None = None) -> None:
        """Look for faults in a run that is over.

        Args:
            run: the run.
            words: messages that its jobs' agents wrote, as far as they were noticed.
            ledger: the file in which its trainers wrote when each trial began and ended.
        """
        self.runs += 1
        status = run.status()
        if status.state is not RunState.DONE or not run.report.exists():
            self._note("unended", f"{run.folder}: {status.state}; report: {run.report.exists()}")
        for region in run.study.region_table:
            self.regions += 1
            self._add_region(run, region)
        self._add_models(run)
        self._add_trainings(run.folder, words, ledger)
        self.repairs.update(
            f"{repair['remedy']}: {_kind(repair['what'])}" for repair in status.repairs
        )

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the audit of another run, as `to_json` gives it."""
        for name, value in other.items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(value)
            else:
                setattr(self, name, mine + value)

    def needed(self, what: str) -> None:
        """Record that a person was needed, and why."""
        self._note("persons", what)

    def to_json(self) -> dict[str, Any]:
        """Return the audit as plain data."""
        return {**vars(self), "repairs": dict(self.repairs)}

    def _add_region(self, run: Run, region: str) -> None:
        records = run.trials(region)
        where, budget = f"{run.folder} {region}", run.study.region_budget(region).trials
        self.trials += sum(record.state in {"complete", "stopped early"} for record in records)
        self.stopped += sum(record.state == "stopped early" for record in records)
        for record in records:
            if record.state == "stopped early":
                if record.predicted is None or record.value is not None:
                    self._note("wrong", f"{where}: {record.node} was stopped: {record}")
            elif record.state != "complete":
                self._note("lost", f"{where}: {record.node} is {record.state}: {record.error}")
            elif not _follows(record.value, record.params["x"]):
                self._note("wrong", f"{where}: {record.node}: {record.value} of {record.params}")
        for number in range(len(records), budget):
            self._note("lost", f"{where}: no trial {number}")
        self._doubled(where, [record.trial for record in records], len(records))
        self._doubled(where, [record.node for record in records], len(records))

    def _add_trainings(self, run: Path, words: Iterable[Word], ledger: Path | None) -> None:
        logs = [log.read_text(errors="replace") for log in trial_logs(run)]
        again = {trial for log in logs for trial in begun_again(log)}
        trained = read_ledger(ledger) if ledger else {}
        again |= set(map(" ".join, trained_again(trained, words)))
        if trained:
            self.trainings += sum(len(times.begins) for times in trained.values())
        else:
            self.trainings += sum(map(begins, logs))
        for name in sorted(again):
            self._note("repeated", f"{run}: {name} was trained again after its result had arrived")

    def _doubled(self, where: str, names: Iterable[object], count: int) -> None:
        counts = Counter(names)
        for name, times in counts.items():
            if times > 1:
                self._note("doubled", f"{where}: {name} is there {times} times")
        numbers = {name for name in counts if isinstance(name, int)}
        if numbers and numbers != set(range(count)):
            self._note("doubled", f"{where}: the trials' numbers have gaps: {sorted(numbers)}")

    def _add_models(self, run: Run) -> None:
        published = {best.region: best for best in run.best() if best.published}
        for region in run.study.region_table:
            best = published.get(region)
            if best is None:
                self._note("unpublished", f"{run.folder} {region}: no model")
                continue
            weights = Path(best.published or "") / "weights"
            if weights.read_text() != str(best.params["x"]):
                self._note("wrong", f"{weights}: {weights.read_text()!r} of {best.params}")

    def _note(self, name: str, what: str) -> None:
        setattr(self, name, getattr(self, name) + 1)
        self.evidence.append(f"{name}: {what}")


def trial_logs(folder: Path) -> list[Path]:
    """Return HTCondor's event logs of a run's trials and full trainings."""
    return [*folder.glob("regions/*/trials/*/log"), *folder.glob("regions/*/best/log")]


def _follows(value: float | None, x: float) -> bool:
    return value is not None and math.isclose(value, (x - BEST_X) ** 2, abs_tol=1e-12)


def _kind(what: str) -> str:
    """Return a fault's text without names that differ from case to case."""
    return re.split(r": |\d", what)[0]
