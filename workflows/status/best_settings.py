"""The best settings of a run, one record per region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.status.attempts.outcome import final_metrics
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.status.status_types import RegionStatus


@dataclass(frozen=True, kw_only=True)
class BestSettings:
    """The best settings of a region, and what became of them.

    `value` is the best trial's value of the objective. `final` has the metrics of the full
    training, or None before the model is published. `published` is the published model's folder, or
    None.
    """

    region: str
    stage: Stage
    trial: int
    value: float
    params: dict[str, Any]
    final: dict[str, float] | None
    published: str | None


def read_best_settings(files: RunFolder, status: RegionStatus, trial: Trial) -> BestSettings:
    """Return the best settings of a region, from its best trial."""
    assert trial.value is not None, "the best trial is complete"
    return BestSettings(
        region=trial.region,
        stage=status.stage,
        trial=trial.trial,
        value=trial.value,
        params=trial.params,
        final=final_metrics(files.region(status.slug)),
        published=status.published,
    )
