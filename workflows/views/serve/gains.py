"""The gain of best settings over the current model or default settings, on the live page."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet import untrusted_files
from trialfleet.files import read_json, unless_damaged
from trialfleet.objective import Direction
from trialfleet.workflows.facts.models.verdict import Verdict
from trialfleet.workflows.formatting import NOTHING, column_decimals, signed_number
from trialfleet.workflows.rules.gate_decision import gate_rule
from trialfleet.workflows.status.attempts.outcome import reported_metrics
from trialfleet.workflows.status.run_trials import build_trial
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.views.report.page_tables import gain_tone
from trialfleet.workflows.views.report.report_numbers import compare
from trialfleet.workflows.views.report.report_types import Comparison
from trialfleet.workflows.views.serve.live_runs import Snapshot


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The gain of a region's best settings over a reference.

    Attributes:
        compared: the comparison by a metric. Its field `default` has the reference's value.
        over: the reference's name: `the current model`, `the previous model` or `default settings`.
        is_rejected: whether the gate rejected the new model. Then the gain is shown without colour.
    """

    compared: Comparison
    over: str
    is_rejected: bool = False

    @property
    def value(self) -> float | None:
        """The gain as a number, or None if nothing could be compared."""
        return self.compared.gain

    @property
    def text(self) -> str:
        """The gain in words, such as `0.01 better`, or a dash if nothing was compared."""
        if self.value is None:
            return NOTHING
        if not self.value:
            return "no better"
        decimals = column_decimals([self.compared.tuned, self.compared.default])
        size = signed_number(abs(self.value), decimals).removeprefix("+")
        return f"{size} {'better' if self.value > 0 else 'worse'}"

    @property
    def parts(self) -> tuple[str, str]:
        """The parts of `text`, such as `0.01` and `better`. For a dash, the second part is ""."""
        figure, _, word = self.text.partition(" ")
        return figure, word

    @property
    def tone(self) -> str:
        """The CSS class of the gain."""
        return "" if self.is_rejected else gain_tone(self.compared)


def read_gain(snapshot: Snapshot, region: RegionStatus) -> Gain:
    """Return the gain of a region's best settings.

    The gain is from the first of these comparisons for which both values are known:

    - By the gate's metric: the new model against the model that was current before the gate. The
      gate measured both on the same rows.
    - By the report metric: this run's full training against the full training of the current model,
      if the current model is from another run.
    - By the report metric: the trial of the best settings against that of the default settings.

    The gain's `value` is None if no comparison has both values.
    """
    files, champion = snapshot.folder.region(region.slug), snapshot.champions.get(region.slug)
    words = untrusted_files.file_stamp(files.verdict), untrusted_files.file_stamp(files.best.result)
    chosen = region.best_trial, region.awaits_approval
    source = region.finished, chosen, champion, words
    return snapshot.kept.get(("gain", region.slug), source, lambda: _find_gain(snapshot, region))


def _find_gain(snapshot: Snapshot, region: RegionStatus) -> Gain:
    study, champion = snapshot.frozen.study, snapshot.champions.get(region.slug)
    verdict = read_new_verdict(snapshot, region.slug)
    if verdict and verdict.champion:
        sides = (verdict.challenger, verdict.champion)
        new, old = (side.metrics.get(verdict.metric) for side in sides)
        if new is not None and old is not None:
            direction = gate_rule(study).direction if study.gate else study.objective.direction
            is_previous = verdict.promoted and not region.awaits_approval
            return Gain(
                compared=_compare(verdict.metric, direction, old, new),
                over="the previous model" if is_previous else "the current model",
                is_rejected=not verdict.promoted,
            )
    metric, direction = study.compared_metric, study.compared_direction
    if champion and champion.run != snapshot.run.status.run:
        current = champion.metrics.get(metric)
        final = reported_metrics(snapshot.folder.region(region.slug).best).get(metric)
        if current is not None and final is not None:
            compared = _compare(metric, direction, current, final)
            return Gain(compared=compared, over="the current model")
    stored = snapshot.run.trials.get(region.name, ())
    best = next((each for each in stored if each.number == region.best_trial), None)
    default = next((each for each in stored if each.user_attrs.get("baseline") is True), None)
    before, now = (build_trial(region.name, each, {}) if each else None for each in (default, best))
    compared = compare(metric, direction, before, now, study.objective.metric)
    return Gain(compared=compared, over="default settings")


def _compare(metric: str, direction: Direction, before: float, now: float) -> Comparison:
    return Comparison(metric=metric, direction=direction, default=before, tuned=now)


def read_new_verdict(snapshot: Snapshot, slug: str) -> Verdict | None:
    """Return the gate's verdict on this run's new model, or None if no verdict can be read."""
    file = snapshot.folder.region(slug).verdict
    return unless_damaged(lambda: Verdict.from_json(read_json(file)), None)
