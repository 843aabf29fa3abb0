"""Whether a region's earlier model is better than a new one, as far as both were measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialfleet.objective import Direction, gain
from trialfleet.workflows.models.card import card_of, verdict_of
from trialfleet.workflows.models.gate_decision import CHALLENGER, CHAMPION, rule_of
from trialfleet.workflows.models.latest import previous_model
from trialfleet.workflows.study.spec import Study


def better_before(published: Path, study: Study) -> Path | None:
    """Return the region's model before this one, if it measured better; None if not, or unknown.

    A gate measured both on the same rows, which counts. Without one their full trainings are
    compared, each by the rows that it had.

    Raises:
        OSError: the folder of the region's models can't be read.
    """
    verdict = verdict_of(published)
    if study.gate and verdict:
        champion = published.parent / verdict.champion if verdict.champion else None
        old, new = (verdict.metrics.get(name, {}) for name in (CHAMPION, CHALLENGER))
        rule = rule_of(study)
        is_better = _is_better(old, new, rule.metric, rule.direction)
        return champion if champion and is_better and champion.is_dir() else None
    before = previous_model(published)
    if before is None:
        return None
    old, new = (card_of(model).get("metrics") or {} for model in (before, published))
    return before if _is_better(old, new, study.compared_metric, study.compared_direction) else None


def _is_better(
    old: Mapping[str, Any], new: Mapping[str, Any], metric: str, direction: Direction
) -> bool:
    return (gain(old.get(metric), new.get(metric), direction) or 0.0) > 0
