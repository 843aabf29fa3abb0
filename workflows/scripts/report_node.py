"""Writing a run's report: `python -m trialfleet.workflows.scripts.report_node RUN`.

The graph's last node runs this after everything else, whatever happened.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import TrialfleetError
from trialfleet.files import write_atomic, write_json
from trialfleet.workflows.billing.bill import overhead
from trialfleet.workflows.dagman.failing import noting
from trialfleet.workflows.disk_space import when_there_is_space
from trialfleet.workflows.jobs.current import end_place
from trialfleet.workflows.jobs.job_log import read_executions, read_job, read_removals, total
from trialfleet.workflows.models.earlier import better_before
from trialfleet.workflows.models.latest import model_in_force
from trialfleet.workflows.output import say
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.plan.graph import EXITS, RegionGraph, graph_of
from trialfleet.workflows.report import (
    RegionSource,
    Report,
    ReportSource,
    build_report,
    render_page,
    report_of_trials,
)
from trialfleet.workflows.status import spending
from trialfleet.workflows.status.job_costs import between_stays, end_stays, trial_stays
from trialfleet.workflows.status.region_state import final_metrics
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.status.states import Stage
from trialfleet.workflows.status.status import Look, StatusReader, open_run
from trialfleet.workflows.status.storage import check_not_emptied, storage_url, study_name
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.spec import Study


def read_report(folder: RunFolder, finished: datetime | None = None) -> Report:
    """Return the report of a run as it stands now.

    Raises:
        OptimizerError: its studies can't be read, or what they held is lost.
    """
    frozen = load_frozen(folder.study)
    if not frozen.study.storage:
        check_not_emptied(folder)
    look, regions = StatusReader(folder).look(), graph_of(frozen.study).regions
    return build_report(_source(folder, frozen, look, regions, finished))


def report_of_region(
    folder: RunFolder, frozen: FrozenStudy, look: Look, region: RegionGraph
) -> Report:
    """Return the report of one region of a run as a look at it shows it.

    The storage is not read again: `report_of_trials` says what is missing for that.
    """
    return report_of_trials(
        _source(folder, frozen, look, [region], None),
        look.trials.get(region.name, ()),
        frozen.study.space_of(region.name).distributions(),
    )


def write_report(folder: RunFolder, finished: datetime | None) -> Report:
    """Write report.html and report.json and return the report, of a run that `finished` or goes on.

    Raises:
        OptimizerError: as `read_report`; a page that is there stays as it is.
    """
    report = read_report(folder, finished)
    write_json(folder.report_data, report.to_json())
    write_atomic(folder.report_page, render_page(report))
    return report


def _source(
    folder: RunFolder,
    frozen: FrozenStudy,
    look: Look,
    regions: Iterable[RegionGraph],
    finished: datetime | None,
) -> ReportSource:
    study = frozen.study
    nodes = overhead(folder, finished or datetime.now(UTC))
    return ReportSource(
        study=study.name,
        run=frozen.run,
        metric=study.objective.metric,
        direction=study.objective.direction,
        report_metric=study.compared_metric,
        report_direction=study.report_direction,
        regions=[_region(folder, frozen, region, look, finished) for region in regions],
        storage_url=storage_url(folder, study),
        created=frozen.created,
        finished=finished,
        notice=_notice(folder, look.status.regions),
        active=[span for files in folder.all_dags() for span in read_executions(files.log)],
        stops=read_removals(folder.dag_files.log),
        lost_share=look.status.work.lost_share,
        boot_usd=nodes.boot if nodes else None,
        idle_usd=nodes.idle if nodes else None,
    )


def _notice(folder: RunFolder, regions: Iterable[RegionStatus]) -> str:
    """Why trials ended early, where that was for want of money; and which models have drifted."""
    regions = list(regions)
    unpaid = spending.unpaid_trials(folder)
    lines = [f"Trials ended early: {unpaid}."] if unpaid else []
    lines += [f"{region.name} ended early: {region.spent}." for region in regions if region.spent]
    lines += [f"{region.name}: {region.drift}." for region in regions if region.drift]
    return " ".join(lines)


def _region(
    folder: RunFolder,
    frozen: FrozenStudy,
    region: RegionGraph,
    look: Look,
    finished: datetime | None,
) -> RegionSource:
    status = next(each for each in look.status.regions if each.slug == region.slug)
    files, trials = folder.region(region.slug), look.trials[region.name]
    now = None if finished or look.status.ended else datetime.now(UTC).timestamp()
    published = Path(status.published) if status.published else None
    in_force, previous = _other_models(published, frozen.study)
    space = frozen.study.space_of(region.name)
    return RegionSource(
        name=region.name,
        slug=region.slug,
        study_name=study_name(frozen.study, frozen.run, region.name),
        stage=status.stage,
        unfinished=look.unfinished[region.name],
        published=published,
        not_latest=status.not_latest,
        gate=str(status.gate) if status.gate else None,
        gate_worse=status.gate is not None and status.gate.is_worse,
        holdout=status.holdout,
        changed=status.changed,
        stopped=status.reason,
        final=final_metrics(files),
        final_job=read_job(end_place(files, files.best)),
        gate_job=read_job(end_place(files, files.gate)),
        defaults=space.active(space.defaults()),
        budget_trials=region.trials,
        usd=status.usd,
        between_usd=total(between_stays(files, frozen.study, now)),
        folder=files.root,
        in_force=in_force,
        previous=previous,
        data=frozen.study.data_of(region.name),
        stays={trial.number: trial_stays(files, trial, frozen.study, now) for trial in trials},
        final_stays=end_stays(files, files.best, frozen.study, None if files.is_done else now),
    )


def _other_models(published: Path | None, study: Study) -> tuple[Path | None, Path | None]:
    """The region's model in force and an earlier one that measured better; None without those."""
    if published is None:
        return None, None
    try:
        return model_in_force(published), better_before(published, study)
    except OSError:  # moved away since, or not to be read: the report is written all the same
        return None, None


def main() -> None:
    """Write the report and exit 0 if every region has what the study asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    arguments = parser.parse_args()
    try:
        folder = open_run(arguments.run)
        with noting(folder.failing, "report", "report"):
            report = when_there_is_space(lambda: write_report(folder, datetime.now(UTC)), say)
    except TrialfleetError as error:
        sys.exit(str(error))
    undone = [region.name for region in report.regions if not Stage(region.status).is_good]
    worse = [region.name for region in report.regions if region.worse is not None]
    message = f"report written; not done: {', '.join(undone) or 'none'}"
    print(message + (f"; tuned is worse than default: {', '.join(worse)}" if worse else ""))
    sys.exit(EXITS["undone"] if undone else EXITS["done"])


if __name__ == "__main__":
    main()
