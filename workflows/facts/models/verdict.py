"""The result of a gate, which compares a region's new model with the current one (gate.json)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trialfleet.files import checker, read_record

CHAMPION, CHALLENGER, BASELINE = "champion", "challenger", "baseline"


@dataclass(frozen=True, kw_only=True)
class GateMetrics:
    """Metrics that a gate measured, for a model or for a constant prediction."""

    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ComparedModel(GateMetrics):
    """A model's run, and the metrics that a gate measured for the model, if any."""

    run: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a gate for the challenger (the new model) and the champion (the current model).

    Attributes:
        verdict: "promoted" if the challenger may replace the champion, at once or after a person's
            approval; otherwise "kept".
        baseline: the metrics of a constant prediction.
        interval: a lower and an upper bound of the mean difference in loss per row (challenger
            minus champion). Each bound is that of a one-sided confidence interval. None if the
            losses can't be compared row by row.
    """

    schema: int = 1
    verdict: Literal["promoted", "kept"]
    why: str
    metric: str
    champion: ComparedModel | None
    challenger: ComparedModel
    baseline: GateMetrics | None
    interval: tuple[float, float] | None

    @property
    def promoted(self) -> bool:
        """True if the challenger may replace the champion."""
        return self.verdict == "promoted"

    @property
    def champion_run(self) -> str | None:
        """The run of the current model; None if there was none."""
        return self.champion.run if self.champion else None

    def to_json(self) -> dict[str, Any]:
        """Return the content of gate.json."""
        return asdict(self)

    @staticmethod
    def from_json(noted: Any) -> Verdict:
        """Return the verdict in the content of a gate.json; ValueError if it has none."""
        found: Verdict = checker(Verdict).validate_python(noted)
        return found


def read_verdict(file: Path) -> Verdict:
    """Return the verdict in a region's gate.json; InputError if the file is damaged."""
    return Verdict.from_json(read_record(file, shape=Verdict))
