"""The commands `init`, `plan`, `schema` and `run`, and the option `--check` of `plan` and `run`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, NoReturn

import click

from trialfleet import ctrl_c
from trialfleet.errors import InputError, PoolError
from trialfleet.files import shell_quoted
from trialfleet.workflows.cli.arguments import Command, anyway_option, date_option
from trialfleet.workflows.cli.watching import show_end, submit_run, watch_to_the_end
from trialfleet.workflows.examples import EXAMPLES, PREPARE, prepare_example, write_example
from trialfleet.workflows.run_path_check import usable_place
from trialfleet.workflows.views.output import json_option, print_json, progress_lines, say

if TYPE_CHECKING:
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.control.run.trainer_check import CheckResult


check_option = click.option(
    "--check",
    "checks",
    is_flag=True,
    help="First run the trainer briefly in each of its modes, as separate jobs.",
)
check_region_option = click.option(
    "--check-region",
    metavar="REGION",
    help="Region for --check (default: the first that a slot can run).",
)


def _one_name(ctx: click.Context, _: click.Parameter, out: Path | None) -> Path | None:
    run_id = ctx.params.get("run_id")
    if out is not None:
        usable_place(out)  # before a pool or a study is looked at
    if out is not None and run_id and out.absolute().name != run_id:
        raise InputError(
            f"--run-id {run_id!r} and --out {str(out)!r} give the run two names; leave out one of "
            f"them, or write --out {str(out / run_id)!r}"
        )
    return out


def planning(command: Command) -> Command:
    """Add to a command the parameters that `plan` and `run` share, such as the study file."""
    for option in (
        check_option,
        check_region_option,
        date_option,
        click.option(
            "--run-id",
            is_eager=True,  # --out's callback needs its value
            help="Name of the run (default: the name of --out, otherwise the time).",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            callback=_one_name,
            help="Folder of the run, named like the run (default: runs/STUDY/NAME).",
        ),
        click.argument("study", type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--example",
    type=click.Choice(list(EXAMPLES)),
    default="first",
    show_default=True,
    help="Example to write.",
)
def init(folder: Path, example: str) -> None:
    """Write an example study with its trainer and data into FOLDER, ready to run."""
    from trialfleet.workflows.examples.needs import lines_on_needs

    study = write_example(example, folder)
    say(f"wrote {study}")
    program = folder / PREPARE
    if program.exists():
        say(f"making the study's data: {shell_quoted(program)}")
        if not prepare_example(folder):
            say(f"then: {shell_quoted(Path(sys.executable))} {shell_quoted(program)}")
    for line in lines_on_needs(folder):
        say(line)
    first = _start_of_a_pool()
    if first:
        say(f"next: {first}")
    say(f"{'then' if first else 'next'}: trialfleet run {shell_quoted(study)}")


def _start_of_a_pool() -> str:
    """Return the command that starts a pool, or "" if a pool is up."""
    from trialfleet.infra.pool.connection import connect, start_command

    try:
        connect()
    except PoolError:
        return start_command()
    return ""


@click.command()
@planning
@json_option
def plan(
    study: Path,
    out: Path | None,
    run_id: str | None,
    day: date | None,
    checks: bool,
    check_region: str | None,
    as_json: bool,
) -> None:
    """Write the folder of a run of STUDY, and show what the run will do."""
    from trialfleet.infra.pool.connection import tools_hint
    from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text

    checks = checks or check_region is not None
    planned = _plan_run(study, out, run_id, day, check_region)
    pool_check = planned.check_pool()
    if as_json:
        checked = None
        if checks:
            with progress_lines(err=True) as progress:
                checked = planned.check_or_remove(progress, check_region)
        print_json({**plan_summary(planned, pool_check), "check": checked and asdict(checked)})
        return
    here = shell_quoted(planned.folder)
    say(plan_text(planned, pool_check))
    if checks:
        _check(planned.check_or_remove, check_region)
    if pool_check.hopeless:
        say(f"next: lower the resources and plan again; or trialfleet submit {here} --anyway")
    else:
        say(f"next: trialfleet submit {here}")
        say(f"  or by hand: condor_submit_dag {here}/study.dag{tools_hint()}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of a study file, for editors."""
    from trialfleet.workflows.study.spec import Study

    print_json(Study.model_json_schema())


@click.command()
@planning
@anyway_option
def run(
    study: Path,
    out: Path | None,
    run_id: str | None,
    day: date | None,
    checks: bool,
    check_region: str | None,
    anyway: bool,
) -> None:
    """Plan a run of STUDY, submit it, and watch it until it has ended.

    If --run-id names an existing run, the command plans no new run. It submits the existing run if
    that was only planned, and watches it if it is in progress. If it has ended, the command shows
    its results.
    """
    from trialfleet.infra.pool.connection import connect
    from trialfleet.workflows.cli.printing.plan_summary import plan_text
    from trialfleet.workflows.rules.states import RunState

    checks = checks or check_region is not None
    there = _find_planned(study, out, run_id, day) if run_id else None
    if there and there.status().state is not RunState.PLANNED:
        _show_again(there)
    if there:
        _find_region(there, check_region)
    connect()  # fail before planning if HTCondor is unreachable
    planned = there or _plan_run(study, out, run_id, day, check_region)
    pool_check = planned.check_pool()
    say(plan_text(planned, pool_check))
    if checks and (anyway or not pool_check.hopeless):  # otherwise `submit` refuses
        _check(planned.check if there else planned.check_or_remove, check_region)
    try:
        job = submit_run(planned, partial(planned.submit, anyway=anyway))
    except InputError:  # the run was planned only for this submission
        if not there:
            planned.remove()
        raise
    say(f"submitted as job {job}")
    watch_to_the_end(planned)


def _check(
    check: Callable[[Callable[[str], None], str | None], CheckResult], region: str | None
) -> None:
    from trialfleet.workflows.control.run.trainer_check import SECONDS

    say(f"  check    starting the trainer once in each mode, for at most {SECONDS:.0f} s …")
    with progress_lines(" " * 11) as progress:
        checked = check(progress, region)
    say(indent(str(checked), " " * 11))


def _find_planned(study: Path, out: Path | None, run_id: str, day: date | None) -> Run | None:
    from trialfleet.workflows.control.plan.accelerator_and_python import is_settled
    from trialfleet.workflows.control.plan.run_ids import check_run_id, default_folder
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.facts.run_folder.folder import RunFolder
    from trialfleet.workflows.study.frozen import load_frozen
    from trialfleet.workflows.study.loading import load_study, load_whole

    check_run_id(run_id)
    place = out or default_folder(load_whole(study), run_id)
    if not RunFolder(place.absolute()).dag.exists():
        return None
    there, of = Run(place), load_frozen(RunFolder(place.absolute()).study).day
    loaded = load_study(study, day or (of.date if of else None))
    if day and of and day != of.date and is_settled(there.study, load_study(study, of.date)):
        raise InputError(
            f"{str(place)!r} is a run of the day {of.date}, not of {day}; choose another --run-id"
        )
    if not is_settled(there.study, loaded):
        raise InputError(
            f"{str(place)!r} is a run of another study, or of an older version of {str(study)!r};"
            " choose another --run-id"
        )
    return there


def _show_again(there: Run) -> NoReturn:
    current = there.status()
    name = shell_quoted(there.folder)
    say(f"{name} already exists and is {current.state}: nothing is planned or trained again")
    if not current.ended:
        watch_to_the_end(there)
    show_end(there, current)


def _plan_run(
    study: Path, out: Path | None, run_id: str | None, day: date | None, check_region: str | None
) -> Run:
    """Plan a run. InputError, and no run, if the study has no region `check_region`."""
    from trialfleet.workflows.control.run.new_run import plan as plan_run

    with ctrl_c.delay_ctrl_c():  # so the run's folder is complete or absent
        planned = plan_run(study, run=run_id, out=out, notice=partial(say, err=True), day=day)
        try:
            _find_region(planned, check_region)
        except InputError:
            planned.remove()
            raise
    return planned


def _find_region(planned: Run, name: str | None) -> None:
    """InputError if the study has no region `name`. None is allowed."""
    if name is not None:
        from trialfleet.workflows.control.run.trainer_check import find_regions

        find_regions(planned.study, name)
