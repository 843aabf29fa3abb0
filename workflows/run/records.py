"""What a run found, as records: each trial, and the best settings of each region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trialfleet.optimizer.stored_trials import is_stopped_early
from trialfleet.workflows.jobs.job_log import Job, job_fields
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.status.causes import failed_attempts
from trialfleet.workflows.status.region_state import final_metrics, noted
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.status.states import Stage, TrialState, trial_state

if TYPE_CHECKING:
    from trialfleet.optimizer.stored_trials import StoredTrial


# What a row of every trial has, in this order; its parameters follow, then its metrics.
COLUMNS = (
    "region", "trial", "node", "state", "value", "predicted", "attempts", "seconds", "started",
    "ended", "wall_seconds", "last_wall_seconds", "cpu_seconds", "memory_mb", "machine", "slot",
    "ranks", "generations", "usd", "lost_usd", "error",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrialRecord(Job):
    """One trial of a region and its job, as the study knows them.

    `started` and `ended` are Unix seconds, what ends in `_seconds` seconds, `memory_mb` MB, `usd`
    and `lost_usd` USD; `params` and `metrics` are dicts. `row` has it all flat, for a table.

    Attributes:
        state: where it stands, as `TrialState` has it.
        value: the objective's metric, of a complete trial.
        predicted: what it would have been, of a trial that was stopped early.
        params: what the trial was given, constants left out.
        metrics: all that it reported.
        seconds: how long its training took, in seconds, by the trainer's own word.
        error: why it failed, or was given up; while it runs: why its last attempt failed, if one
            has.
    """

    region: str
    trial: int
    node: str
    state: TrialState
    value: float | None
    predicted: float | None
    params: dict[str, Any]
    metrics: dict[str, float]
    seconds: float | None
    error: str | None

    def row(self) -> dict[str, Any]:
        """Return it as a row of a table, flat, with the columns of `trialfleet trials --csv`.

        `started` and `ended` are datetimes in UTC here; each parameter is a column `params.NAME`,
        each metric `metrics.NAME`. `pandas.DataFrame([trial.row() for trial in run.trials()])`
        makes a table of them, polars likewise.
        """
        return {
            **{name: getattr(self, name) for name in COLUMNS},
            "state": str(self.state),
            "started": _moment(self.started),
            "ended": _moment(self.ended),
            **{f"params.{name}": value for name, value in self.params.items()},
            **{f"metrics.{name}": value for name, value in self.metrics.items()},
        }


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True, kw_only=True)
class BestSettings:
    """The best settings of a region.

    Attributes:
        stage: where the region stands.
        value: the objective's metric of the trial that had them.
        final: the metrics of their full training; None until it is done.
        published: the folder of the published model; None until it is.
    """

    region: str
    stage: Stage
    trial: int
    value: float
    params: dict[str, Any]
    final: dict[str, float] | None
    published: str | None


def record_of(region: str, trial: StoredTrial, unfinished: Mapping[str, TrialState]) -> TrialRecord:
    """Return a trial as a record; `unfinished` has the words for nodes that were not told yet."""
    attributes = trial.user_attrs
    return TrialRecord(
        region=region,
        trial=trial.number,
        node=attributes["node"],
        state=trial_state(
            trial.state.name, attributes["node"], unfinished, stopped_early=is_stopped_early(trial)
        ),
        value=trial.value if trial.state.name == "COMPLETE" else None,
        predicted=trial.value if is_stopped_early(trial) else None,
        params=attributes["params"],
        metrics=attributes.get("metrics", {}),
        seconds=attributes.get("seconds"),
        error=attributes.get("error") or _last_error(trial),
        attempts=attributes.get("attempts") or 0,
        **job_fields(attributes.get("job") or {}),  # none where jobs weren't recorded yet
    )


def _last_error(trial: StoredTrial) -> str | None:
    """Why the last attempt at a trial that isn't finished failed, if one has."""
    attempts = [] if trial.state.is_finished() else failed_attempts([trial])
    return attempts[-1].error if attempts else None


def best_of(files: RunFolder, status: RegionStatus, record: TrialRecord) -> BestSettings:
    """Return the best settings of a region, by the record of their trial."""
    region = files.region(status.slug)
    assert record.value is not None, "the best trial is complete"
    return BestSettings(
        region=record.region,
        stage=status.stage,
        trial=record.trial,
        value=record.value,
        params=record.params,
        final=final_metrics(region),
        published=noted(region.published, "path"),
    )
