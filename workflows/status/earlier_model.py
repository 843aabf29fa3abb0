"""The comparison of a region's new model with the previous one, by a metric."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trialfleet.objective import Direction
from trialfleet.workflows.facts.models.card import read_card, read_model_verdict
from trialfleet.workflows.facts.models.folders import previous_model
from trialfleet.workflows.rules.gate_decision import gate_rule
from trialfleet.workflows.study.spec import Study


class WithPrevious(NamedTuple):
    """A metric of a model (`value`) and of the region's previous model (`value_before`).

    `before` is the previous model's folder. Unknown values are None.
    """

    metric: str
    direction: Direction
    value: float | None
    before: Path | None
    value_before: float | None


def with_previous(published: Path, study: Study) -> WithPrevious:
    """Return a metric of a published model and of the region's previous model.

    If a gate measured both models on the same rows, the metric and its values are the gate's.
    Otherwise the metric is `study.compared_metric`, and each model's value is from its own full
    training, on other rows. Raises OSError if the folder of the region's models can't be read.
    """
    verdict = read_model_verdict(published)
    if study.gate and verdict:
        metric, direction = gate_rule(study).metric, gate_rule(study).direction
        before = published.parent / verdict.champion_run if verdict.champion_run else None
        old = verdict.champion.metrics if verdict.champion else {}
        new = verdict.challenger.metrics
    else:
        metric, direction = study.compared_metric, study.compared_direction
        before = previous_model(published)
        old, new = (
            (read_card(model).get("metrics") or {}) if model else {}
            for model in (before, published)
        )
    return WithPrevious(metric, direction, new.get(metric), before, old.get(metric))
