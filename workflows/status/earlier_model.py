"""Whether a region's earlier model is better than a new one, as far as both were measured."""

from __future__ import annotations

from pathlib import Path

from trialfleet.objective import is_better
from trialfleet.workflows.facts.models.card import card_of, verdict_of
from trialfleet.workflows.facts.models.folders import previous_model
from trialfleet.workflows.rules.gate_decision import rule_of
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
        metric, direction = rule_of(study).metric, rule_of(study).direction
        before = published.parent / verdict.former if verdict.former else None
        old = verdict.champion.metrics if verdict.champion else {}
        new = verdict.challenger.metrics
    else:
        metric, direction = study.compared_metric, study.compared_direction
        before = previous_model(published)
        old, new = (
            card_of(model).get("metrics") or {} for model in (before or published, published)
        )
    was, now = old.get(metric), new.get(metric)
    is_known = before is not None and before.is_dir() and now is not None
    return before if is_known and is_better(was, now, direction) else None
