"""Writing a run's report: `python -m trialfleet.workflows.run_report RUN`.

The graph's FINAL node runs this after everything else, whatever happened; its exit code is the
whole graph's success or failure. DAGMan's own $FAILED_COUNT would not do: it counts an optimiser's
service that was killed, which costs nothing.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import TrialfleetError
from trialfleet.files import read_json, write_atomic, write_json
from trialfleet.workflows.folder import RunFolder
from trialfleet.workflows.graph import RegionGraph, graph_of
from trialfleet.workflows.report import (
    RegionSource,
    Report,
    ReportSource,
    build_report,
    render_page,
)
from trialfleet.workflows.status import open_run
from trialfleet.workflows.storage import storage_url, study_name
from trialfleet.workflows.study_file import FrozenStudy, load_frozen


def read_report(folder: RunFolder, finished: datetime | None = None) -> Report:
    """Return the report of a run as it stands now."""
    return build_report(_source(folder, load_frozen(folder.study), finished))


def write_report(folder: RunFolder, finished: datetime | None) -> Report:
    """Write report.html and report.json and return the report.

    Args:
        folder: the run's folder.
        finished: when the run ended; None while it runs.
    """
    report = read_report(folder, finished)
    write_json(folder.report_data, report.to_json())
    write_atomic(folder.report_page, render_page(report))
    return report


def last_finished(folder: RunFolder) -> datetime | None:
    """Return when a run ended, by the report of its FINAL node; None if that never ran."""
    if not folder.report_data.exists():
        return None
    finished = read_json(folder.report_data)["finished"]
    return datetime.fromisoformat(finished) if finished else None


def _source(folder: RunFolder, frozen: FrozenStudy, finished: datetime | None) -> ReportSource:
    study = frozen.study
    return ReportSource(
        study=study.name,
        run=frozen.run,
        metric=study.objective.metric,
        direction=study.objective.direction,
        report_metric=study.compared_metric,
        regions=[_region(folder, frozen, region) for region in graph_of(study).regions],
        storage_url=storage_url(folder, study),
        created=datetime.fromtimestamp(folder.study.stat().st_mtime, UTC),
        finished=finished,
    )


def _region(folder: RunFolder, frozen: FrozenStudy, region: RegionGraph) -> RegionSource:
    files = folder.region(region.slug)
    space = frozen.study.space_of(region.name)
    published = files.published.exists()
    return RegionSource(
        name=region.name,
        slug=region.slug,
        study_name=study_name(frozen.study, frozen.run, region.name),
        published=Path(read_json(files.published)["path"]) if published else None,
        stopped=read_json(files.stopped)["reason"] if files.stopped.exists() else None,
        final=read_json(files.best.result)["metrics"] if published else None,
        defaults=space.active(space.defaults()),
        budget_trials=region.trials,
    )


def main() -> None:
    """Write the report and exit 0 if every region published its model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    arguments = parser.parse_args()
    try:
        report = write_report(open_run(arguments.run), datetime.now(UTC))
    except TrialfleetError as error:
        sys.exit(str(error))
    unpublished = [region.name for region in report.regions if region.published is None]
    print(f"report written; not published: {', '.join(unpublished) or 'none'}")
    sys.exit(1 if unpublished else 0)


if __name__ == "__main__":
    main()
