"""How much better a region is than what was before: models with models, trials with trials."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trialfleet import job_files
from trialfleet.files import read_json, unless_damaged
from trialfleet.objective import Direction
from trialfleet.workflows.facts.models.verdict import Verdict
from trialfleet.workflows.formatting import NOTHING, column_decimals, signed
from trialfleet.workflows.rules.gate_decision import rule_of
from trialfleet.workflows.status.attempts.outcome import reported_metrics
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.status.run_trials import trial_of
from trialfleet.workflows.views.report.analysis import compare
from trialfleet.workflows.views.report.model import Comparison
from trialfleet.workflows.views.report.tables import gain_tone
from trialfleet.workflows.views.serve.live import Snapshot


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How much better a region's best settings are than what was before: positive is better.

    Attributes:
        compared: what was before, as `default`, and these, in which metric.
        over: what was before: `the model in force`, `the former model`, or `default settings`.
        kept_out: the gate did not let it pass, so a difference is no gain.
    """

    compared: Comparison
    over: str
    kept_out: bool = False

    @property
    def value(self) -> float | None:
        """The difference; None while there is nothing to compare."""
        return self.compared.gain

    @property
    def metric(self) -> str:
        """In which they are compared."""
        return self.compared.metric

    @property
    def text(self) -> str:
        """The difference, as people read it: `0.01 better`."""
        if self.value is None:
            return NOTHING
        if not self.value:
            return "no better"
        decimals = column_decimals([self.compared.tuned, self.compared.default])
        size = signed(abs(self.value), decimals).removeprefix("+")
        return f"{size} {'better' if self.value > 0 else 'worse'}"

    @property
    def parts(self) -> tuple[str, str]:
        """The figure, and whether it is better or worse."""
        figure, _, word = self.text.partition(" ")
        return figure, word

    @property
    def tone(self) -> str:
        """The CSS class of the figure."""
        return "" if self.kept_out else gain_tone(self.compared)


def gain_of(snapshot: Snapshot, region: RegionStatus) -> Gain:
    """How much better a region's best settings are.

    The gate measured both models on the same rows, so its word counts where there is one. Without a
    gate a full training is held against that of another run's model in force. Until there is one,
    best and default settings are compared, as tuning ran them: a trial isn't a model yet. All but
    the gate compare by the report's metric.
    """
    files, champion = snapshot.folder.region(region.slug), snapshot.champions.get(region.slug)
    words = job_files.stamp_of(files.verdict), job_files.stamp_of(files.best.result)
    source = region.finished, region.best_trial, champion, words
    return snapshot.kept.of(("gain", region.slug), source, lambda: _found(snapshot, region))


def _found(snapshot: Snapshot, region: RegionStatus) -> Gain:
    verdict = verdict_of(snapshot, region.slug)
    if verdict and verdict.champion:
        sides = [
            side.metrics.get(verdict.metric) for side in (verdict.challenger, verdict.champion)
        ]
        is_former = verdict.promoted and not region.awaits_approval
        over = "the former model" if is_former else "the model in force"
        if sides[0] is not None and sides[1] is not None:
            study = snapshot.frozen.study
            direction = rule_of(study).direction if study.gate else study.objective.direction
            found = _gain(sides[0], sides[1], direction, over, verdict.metric)
            return replace(found, kept_out=not verdict.promoted)
    champion = snapshot.champions.get(region.slug)
    if champion and champion.run != snapshot.look.status.run:
        study = snapshot.frozen.study
        metric = study.compared_metric
        before = champion.metrics.get(metric)
        final = reported_metrics(snapshot.folder.region(region.slug).best).get(metric)
        if before is not None and final is not None:
            return _gain(final, before, study.compared_direction, "the model in force", metric)
    return _gain_of_trials(snapshot, region)


def _gain_of_trials(snapshot: Snapshot, region: RegionStatus) -> Gain:
    """How much better a region's best trial is than that of the default settings: the report's."""
    study = snapshot.frozen.study
    metric = study.compared_metric
    stored = snapshot.look.trials.get(region.name, ())
    best = next((each for each in stored if each.number == region.best_trial), None)
    default = next((each for each in stored if each.user_attrs.get("baseline") is True), None)
    before, now = (trial_of(region.name, each, {}) if each else None for each in (default, best))
    compared = compare(metric, study.compared_direction, before, now, study.objective.metric)
    return Gain(compared=compared, over="default settings")


def _gain(
    now: float | None, before: float | None, direction: Direction, over: str, metric: str
) -> Gain:
    compared = Comparison(metric=metric, direction=direction, default=before, tuned=now)
    return Gain(compared=compared, over=over)


def verdict_of(snapshot: Snapshot, slug: str) -> Verdict | None:
    """Return what the gate said in this run; None where it hasn't said anything."""
    file = snapshot.folder.region(slug).verdict
    return unless_damaged(lambda: Verdict.from_json(read_json(file)), None)
