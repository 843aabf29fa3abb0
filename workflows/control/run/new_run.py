"""The functions that plan a new run: they complete the study, and write the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.files import closed_to_others
from trialfleet.workflows.control.plan import accelerator_and_python
from trialfleet.workflows.control.plan.dag_files import trainer_command
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.control.plan.run_ids import Claim, claim_run, default_folder
from trialfleet.workflows.control.run.learn_from import previous_tasks
from trialfleet.workflows.control.run.plan_estimate import estimate_cost
from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts.run_folder.dag_structure import autoscale_mode
from trialfleet.workflows.rules import resource_limits
from trialfleet.workflows.run_path_check import place_warning, usable_place
from trialfleet.workflows.study.daily import DATE, RunsDay
from trialfleet.workflows.study.error_lines import errors_with_lines, find_lines
from trialfleet.workflows.study.frozen import CostsBefore
from trialfleet.workflows.study.loading import load_dated, load_whole
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.study.trainer_command import check_program

if TYPE_CHECKING:
    from trialfleet.infra.fleet.aws.account import AwsEnvironment


def plan(
    study: Study | str | PathLike[str],
    *,
    run: str | None = None,
    out: str | PathLike[str] | None = None,
    notice: Callable[[str], None] | None = None,
    day: date | RunsDay | None = None,
) -> Run:
    """Write a run's folder and return the run, which is not yet submitted.

    Args:
        study: a study from `load_study`, or the path of a study file.
        run: the run's id. Default: the name of `out` if it is a valid id, otherwise the time. If
            another run has the default id, a number is appended.
        out: the run's folder; default: runs/STUDY/RUN-ID in the working directory.
        notice: called with a line about each possible mistake.
        day: the day of the run. Default: today if `study` is a file with `{date}` in a path of its
            data; otherwise no day.

    Raises:
        InputError: the study, the id or the folder can't be used.
        FleetError: the run would start EC2 nodes, but the AWS account can't be determined.
    """
    if isinstance(study, Study):
        return _plan(study, run, out, notice, {}, _runs_day(day))
    with errors_with_lines(study):
        loaded, today = load_dated(study, day.date if isinstance(day, RunsDay) else day)
        if isinstance(day, date) and notice and not load_whole(Path(study)).is_dated:
            notice(f"no path in `data` contains {DATE}, so the date {day} has no effect")
        places = find_lines(study, resource_limits.KEYS)
        return _plan(loaded, run, out, notice, places, _runs_day(day or today))


def plan_day(
    study: Study, run: str, out: Path, day: RunsDay, file: Path, notice: Callable[[str], None]
) -> None:
    """Write the folder of a day's run, as `plan` does, for a study read from `file`."""
    _plan(study, run, out, notice, find_lines(file, resource_limits.KEYS), day)


def _runs_day(day: date | RunsDay | None) -> RunsDay | None:
    return RunsDay(date=day) if isinstance(day, date) else day


@closed_to_others()
def _plan(
    study: Study,
    run: str | None,
    out: str | PathLike[str] | None,
    notice: Callable[[str], None] | None,
    places: Mapping[str, str],
    day: RunsDay | None,
) -> Run:
    study, notes = _settle_study(study)
    aws = _aws_environment(study)
    _check_export(study)
    before = estimate_cost(study) if study.has_budget_in_usd else None
    previous = previous_tasks(study)
    place = None if out is None else usable_place(Path(out))
    if run is None:
        claim = claim_run(study, place)
    else:
        claim = Claim(run, place or default_folder(study, run))
    try:
        folder = write_plan(
            study,
            run=claim.run,
            out=claim.place,
            aws=aws,
            notes=notes,
            places=places,
            day=day,
            costs=CostsBefore(trial=before.trial, full=before.full) if before else None,
            previous=previous,
        )
    except BaseException:
        claim.release()
        raise
    if notice and (warning := place_warning(folder.root)):
        notice(warning)
    return Run(folder.root)


def _settle_study(study: Study) -> tuple[Study, tuple[str, ...]]:
    pool = accelerator_and_python.inspect_pool()
    study, notes = accelerator_and_python.settle(study, pool)
    if pool.on_this_machine and not study.image:
        check_program(trainer_command(study)[0], pool.job_path)
    return study, notes


def _check_export(study: Study) -> None:
    if study.export and study.export.s3 and not study.s3:
        from trialfleet.infra.fleet.aws import account

        account.check_found_by_jobs(f"the export to {study.export.s3}")


def _aws_environment(study: Study) -> AwsEnvironment | None:
    if study.fleet is None or autoscale_mode(study) == "off":
        return None
    from trialfleet.infra.fleet.aws import account

    return account.snapshot(study.fleet.home)
