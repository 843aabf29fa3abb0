"""What a gate decided on a region's new model, as gate.json and a model's card have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAMPION, CHALLENGER, BASELINE = "champion", "challenger", "baseline"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the gate decided.

    Attributes:
        promoted: whether the challenger takes the champion's place.
        why: in a line, for people.
        metric: what decided; its name.
        champion: the run of the model in force; None: there was none.
        challenger: the run of the new model.
        metrics: of champion, challenger and baseline, as far as they were measured.
        interval: of the mean difference of the losses, challenger - champion: the two ends of
            one-sided intervals; None without losses.
    """

    promoted: bool
    why: str
    metric: str
    champion: str | None
    challenger: str
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of gate.json."""

        def model(name: str, run: str | None) -> dict[str, Any] | None:
            return {"run": run, "metrics": dict(self.metrics.get(name, {}))} if run else None

        baseline = self.metrics.get(BASELINE)
        return {
            "schema": 1,
            "verdict": "promoted" if self.promoted else "kept",
            "why": self.why,
            "metric": self.metric,
            CHAMPION: model(CHAMPION, self.champion),
            CHALLENGER: model(CHALLENGER, self.challenger),
            BASELINE: None if baseline is None else {"metrics": dict(baseline)},
            "interval": self.interval,
        }

    @staticmethod
    def read(noted: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_json` wrote."""
        models = {name: noted[name] for name in (CHAMPION, CHALLENGER, BASELINE) if noted[name]}
        low_and_high = noted["interval"]
        return Verdict(
            promoted=noted["verdict"] == "promoted",
            why=noted["why"],
            metric=noted["metric"],
            champion=noted[CHAMPION] and noted[CHAMPION]["run"],
            challenger=noted[CHALLENGER]["run"],
            metrics={name: model["metrics"] for name, model in models.items()},
            interval=(low_and_high[0], low_and_high[1]) if low_and_high else None,
        )
