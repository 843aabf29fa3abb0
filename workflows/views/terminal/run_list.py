"""The list of runs that `trialfleet runs` shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from trialfleet.errors import InputError
from trialfleet.workflows.facts.models.folders import reason_not_latest
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.lookup import FoundRun
from trialfleet.workflows.formatting import duration, local_time
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.status.status_reader import StatusReader, last_finished, open_run
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.views.output import plain_table
from trialfleet.workflows.views.terminal.status_view import state_text


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run in the list of runs.

    Attributes:
        state: the run's state, or None if the run can't be read.
        published: the number of regions whose published model became the current one.
        kept: the number of regions whose published model did not become the current one.
        began: when the run was planned, or None if the run can't be read.
        seconds: the time from planning to the run's end, or until now if the run is running or
            held. None if the run was not submitted, or if its end is unknown.
        trouble: why the run can't be read, or None.
    """

    study: str
    run: str
    folder: str
    state: RunState | None
    published: int = 0
    kept: int = 0
    regions: int = 0
    began: datetime | None = None
    seconds: float | None = None
    trouble: str | None = None


def list_runs(found: Iterable[FoundRun]) -> list[ListedRun]:
    """Return each run with its state, or with the reason why it can't be read."""
    return [_read_listed(run) for run in found]


def _read_listed(found: FoundRun) -> ListedRun:
    try:
        return _read(open_run(found.folder))
    except InputError as error:
        place = str(found.folder)
        return ListedRun(
            study=found.study, run=found.run, folder=place, state=None, trouble=str(error)
        )


def _read(folder: RunFolder) -> ListedRun:
    frozen = load_frozen(folder.study)
    state = StatusReader(folder).state()
    slugs = [region.slug for region in build_graph(frozen.study).regions]
    records = [found for slug in slugs if (found := folder.region(slug).published).exists()]
    kept = sum(reason_not_latest(record) is not None for record in records)
    return ListedRun(
        study=frozen.study.name,
        run=frozen.run,
        folder=str(folder.root),
        state=state,
        published=len(records) - kept,
        kept=kept,
        regions=len(slugs),
        began=frozen.created.replace(microsecond=0),
        seconds=_seconds(folder, state, frozen.created),
    )


def _seconds(folder: RunFolder, state: RunState, began: datetime) -> float | None:
    if state is RunState.PLANNED:
        return None
    end = datetime.now(UTC) if state.has_jobs else last_finished(folder)
    return (end - began).total_seconds() if end else None


def runs_table(runs: Iterable[ListedRun]) -> Table:
    """Return a table with a row per run."""
    table = plain_table("study", "run", "", "published", "planned", "duration")
    for run in runs:
        table.add_row(
            Text(run.study),
            Text(run.run),
            state_text(run.state) if run.state else Text("can't be read", "red"),
            _published_text(run) if run.state else "",
            local_time(run.began),
            duration(run.seconds),
        )
    return table


def _published_text(run: ListedRun) -> str:
    kept = f", {run.kept} not current" if run.kept else ""
    return f"{run.published} of {run.regions}{kept}"
