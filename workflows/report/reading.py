"""From Optuna's storage to a `Report`. Reads only: a storage that isn't there stays so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.errors import OptimizerError
from trialfleet.workflows.report import analysis
from trialfleet.workflows.report.formatting import is_finite
from trialfleet.workflows.report.model import Region, Report, Trial
from trialfleet.workflows.report.source import RegionSource, ReportSource

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

STATES = {
    "COMPLETE": "complete",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
    "PRUNED": "pruned",
}
TERMINAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def build_report(source: ReportSource) -> Report:
    """Read every region's study and say what came of it.

    A region without a study, and a storage that doesn't exist yet, are regions not started.

    Raises:
        OptimizerError: the storage exists and can't be read.
    """
    with _storage(source.storage_url) as storage:
        regions = tuple(_region(source, region, storage) for region in source.regions)
    wall = (source.finished - source.created).total_seconds() if source.finished else None
    return Report(
        study=clean(source.study),
        run=clean(source.run),
        metric=clean(source.metric),
        direction=source.direction,
        report_metric=clean(source.report_metric),
        report_direction=source.report_direction or source.direction,
        created=source.created,
        finished=source.finished,
        wall_seconds=wall,
        compute_seconds=sum(region.compute_seconds for region in regions),
        complete=sum(region.complete for region in regions),
        failed=sum(region.failed for region in regions),
        budget_trials=sum(region.budget_trials for region in regions),
        regions=regions,
    )


def clean(value: Any) -> Any:
    """`value` with every text in it printable: no terminal colours, no control characters.

    What trainers write ends in a page, a terminal and a UTF-8 file; half a surrogate pair can't
    even be stored in the last.
    """
    if isinstance(value, str):
        text = TERMINAL_SEQUENCE.sub("", value.replace("\r\n", "\n"))
        return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


@contextmanager
def _storage(url: str) -> Iterator[BaseStorage | None]:
    """The storage at `url`; None if it was never made. Its connections end with the context."""
    import sqlalchemy
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage

    try:
        if not _exists(url):
            yield None
            return
        storage = RDBStorage(url, skip_table_creation=True)
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError, RuntimeError, ImportError) as e:
        raise OptimizerError(f"the studies in {_shown(url)} can't be read: {e}") from e


def _exists(url: str) -> bool:
    """Whether Optuna's tables are at `url`; opening them through Optuna would create them."""
    import sqlalchemy

    address = sqlalchemy.make_url(url)
    if address.get_backend_name() == "sqlite" and not Path(address.database or "").is_file():
        return False
    engine = sqlalchemy.create_engine(address)
    try:
        return sqlalchemy.inspect(engine).has_table("trials")
    finally:
        engine.dispose()


def _shown(url: str) -> str:
    """`url` without its password."""
    import sqlalchemy

    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return "the study's storage"


def _study(storage: BaseStorage | None, name: str) -> Study | None:
    import optuna

    try:
        return None if storage is None else optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return None


def _region(source: ReportSource, region: RegionSource, storage: BaseStorage | None) -> Region:
    study = _study(storage, region.study_name)
    frozen = [] if study is None else study.get_trials(deepcopy=False)
    trials = tuple(_trial(item) for item in frozen)
    best = analysis.best_of(trials, source.direction)
    baseline = next((trial for trial in trials if trial.baseline), None)
    final = None if region.final is None else _finite(clean(region.final))
    counts = {state: sum(trial.state == state for trial in trials) for state in STATES.values()}
    return Region(
        name=clean(region.name),
        slug=clean(region.slug),
        study_name=clean(region.study_name),
        status=analysis.status_of(region, trials),
        stopped=clean(region.stopped),
        budget_trials=region.budget_trials,
        complete=counts["complete"],
        failed=counts["failed"],
        running=counts["running"],
        objective=analysis.compare(source.metric, source.direction, baseline, best, source),
        report=analysis.compare(
            source.report_metric,
            source.report_direction or source.direction,
            baseline,
            best,
            source,
        ),
        final=final,
        published=None if region.published is None else clean(str(region.published)),
        best_trial=None if best is None else best.number,
        baseline_trial=None if baseline is None else baseline.number,
        compute_seconds=sum(trial.seconds or 0.0 for trial in trials),
        wall_seconds=_wall_seconds(frozen),
        importance=analysis.importance_of(study, source.direction),
        settings=analysis.settings_of(
            clean(region.defaults), best, [item.distributions for item in frozen]
        ),
        failures=analysis.failures_of(trials),
        trials=trials,
    )


def _trial(trial: FrozenTrial) -> Trial:
    notes: dict[str, Any] = clean(trial.user_attrs)
    state = STATES[trial.state.name]
    value = trial.values[0] if trial.values else None
    return Trial(
        number=trial.number,
        node=str(notes.get("node", "")),
        state=state,
        baseline=notes.get("baseline") is True,
        objective=value if state == "complete" and is_finite(value) else None,
        metrics=_finite(notes.get("metrics")),
        params=_mapping(notes.get("params", clean(trial.params))),
        seconds=_number(notes.get("seconds")),
        device=str(notes.get("device") or ""),
        attempts=notes["attempts"] if isinstance(notes.get("attempts"), int) else None,
        error=_error(state, notes.get("error")),
    )


def _error(state: str, error: Any) -> str | None:
    if state != "failed":
        return None
    return str(error or "").strip() or "no error was recorded"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if is_finite(value) and value >= 0 else None


def _finite(value: Any) -> dict[str, float]:
    return {name: item for name, item in _mapping(value).items() if is_finite(item)}


def _wall_seconds(trials: Sequence[FrozenTrial]) -> float | None:
    starts = [trial.datetime_start for trial in trials if trial.datetime_start]
    ends = [trial.datetime_complete for trial in trials if trial.datetime_complete]
    if not starts or not ends:
        return None
    # Optuna's times have no zone: a clock set back during the run must not give a negative time
    return max(0.0, (max(ends) - min(starts)).total_seconds())
