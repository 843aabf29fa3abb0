"""The commands `runs`, `submit`, `status`, `why`, `logs`, `stop`, `resume`, `remove` and others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trialfleet.errors import InputError
from trialfleet.files import shell_quoted
from trialfleet.workflows.cli.arguments import (
    Integer,
    anyway_option,
    completed_by_runs,
    completed_by_subjects,
    confirm,
    find_named_run,
    run_argument,
    run_to_name,
)
from trialfleet.workflows.cli.watching import submit_run, watch_to_the_end
from trialfleet.workflows.views.output import json_option, print_json, progress_lines, say, show

if TYPE_CHECKING:
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.rules.states import TrialState

_SHOWN_RUNS = 20
_LAST_LINES = 50
# click keeps the line breaks of a paragraph that begins with a backspace
_EXIT_CODES = """\b
Exit codes:
  0  the run is planned, running or done
  1  the run has failed, was stopped, is held or lost; or one of its
     trials makes no progress or can't start in the present pool; or one
     of its jobs is on hold; or its state is unknown because HTCondor is
     unreachable
  2  the run does not exist
With --watch: 0 if the run ends as done, otherwise 1.
"""


@click.command()
@click.option(
    "--all", "show_all", is_flag=True, help=f"Show all runs, not only the newest {_SHOWN_RUNS}."
)
@json_option
def runs(show_all: bool, as_json: bool) -> None:
    """List the runs in ./runs, newest first."""
    from trialfleet.workflows.facts.runs.lookup import RUNS, runs_here
    from trialfleet.workflows.views.terminal.run_list import list_runs, runs_table

    found = runs_here()
    shown = list_runs(found if show_all else found[:_SHOWN_RUNS])
    if as_json:
        print_json(shown)
        return
    if not found:
        say(f"no runs in {str(RUNS.absolute())!r}; start one with: trialfleet run STUDY")
        return
    show(runs_table(shown))
    for run in shown:
        if run.trouble:
            say(f"{run.folder}: {run.trouble}")
    if len(shown) < len(found):
        say(f"… {len(found) - len(shown)} older: trialfleet runs --all")


@click.command()
@run_argument
@anyway_option
def submit(run: str | None, anyway: bool) -> None:
    """Submit a planned RUN (default: the newest) to HTCondor."""
    planned = find_named_run(run, planned=True)
    say(f"submitted as job {submit_run(planned, partial(planned.submit, anyway=anyway))}")
    say(f"next: trialfleet status {shell_quoted(planned.folder)} --watch")


@click.command(epilog=_EXIT_CODES)
@run_argument
@click.option("--watch", "keep_watching", is_flag=True, help="Watch until the run has ended.")
@json_option
def status(run: str | None, keep_watching: bool, as_json: bool) -> None:
    """Show the state of RUN (default: the newest submitted run in ./runs)."""
    from trialfleet.workflows.rules.states import RunState
    from trialfleet.workflows.views.terminal.status_view import run_view

    opened = find_named_run(run)
    if keep_watching and not as_json:
        watch_to_the_end(opened)
    for current in opened.watch() if keep_watching else [opened.status()]:
        if as_json:
            print_json(current.to_json(), indent=None if keep_watching else 1)
        else:
            show(run_view(current))
            for line in _left_out(opened.folder):
                say(line)
    is_good = current.state is RunState.DONE if keep_watching else current.is_well
    sys.exit(0 if is_good else 1)


def _left_out(folder: Path) -> list[str]:
    from trialfleet.workflows.facts.run_folder.folder import RunFolder
    from trialfleet.workflows.status.day_outcomes import absence_text, left_out_or_why
    from trialfleet.workflows.study.frozen import load_frozen

    absent, trouble = left_out_or_why(folder, load_frozen(RunFolder(folder).study).day)
    return [*map(absence_text, absent), *([trouble] if trouble else [])]


_run_option = click.option(
    "--run",
    metavar="RUN",
    help="Run to look in (default: the newest run in ./runs that matches the argument).",
    shell_complete=completed_by_runs,
)


@click.command()
@click.argument(
    "subject",
    metavar="[RUN|REGION|NODE|JOB|INSTANCE]",
    required=False,
    shell_complete=completed_by_subjects,
)
@_run_option
@click.option("--verbose", "-v", is_flag=True, help="Show the evidence.")
@json_option
def why(subject: str | None, run: str | None, verbose: bool, as_json: bool) -> None:
    """Explain why a run, region, trial or node is not progressing, and how to fix it.

    The argument is a run, a region (A, STUDY/A or RUN/A), a trial (A.l1.t01), another DAG node of
    a region (A.best), an HTCondor job (12.0), or an EC2 instance (i-0123456789abcdef0). The default
    is the newest run.
    """
    from trialfleet.infra.pool.connection import tools_hint
    from trialfleet.workflows.views.why.explain import explain

    answer = explain(subject, run)
    if as_json:
        print_json(answer.to_json())
        return
    is_tool = answer.command.startswith("condor_")
    first, *rest = answer.lines()
    say(first)
    for line in rest:
        is_command = is_tool and line.startswith("next: ")
        say(f"{line}{tools_hint() if is_command else ''}")
    if verbose:
        for line in answer.evidence:
            say(f"  {line}")


@click.command()
@click.argument("trial", shell_complete=completed_by_subjects)
@_run_option
@click.option("--follow", "-f", is_flag=True, help="Follow the output until the trial has ended.")
@click.option(
    "--lines",
    type=Integer(1),
    default=_LAST_LINES,
    show_default=True,
    help="Number of last lines to show of each stream.",
)
def logs(trial: str, run: str | None, *, follow: bool, lines: int) -> None:
    """Show the standard output and standard error of TRIAL.

    TRIAL is a trial such as A.l1.t01, or a lane such as A.l1, which means the lane's current trial.
    A.best is the full training of region A, and A.gate is the gate. A running trial sends its
    output every 2 seconds in its first minute, and then every 10 seconds. With early stopping, it
    always sends it every 2 seconds. Output beyond 4 MB arrives with the result.
    """
    from trialfleet.workflows.facts.jobs.ordered_trial import end_place, ordered_trial
    from trialfleet.workflows.facts.run_folder.folder import RunFolder
    from trialfleet.workflows.views.terminal.trial_output import TrialOutput
    from trialfleet.workflows.views.why.subject import find_subject

    subject = find_subject(trial, run)
    if subject.folder is None or subject.region is None or not subject.node:
        raise InputError(f"{trial!r} is a {subject.what}; name a trial such as A.l1.t01")
    files, region = RunFolder(subject.folder).region(subject.region.slug), subject.region.name
    place = ordered_trial(files, subject.node)
    if place.root in {files.best.root, files.gate.root}:
        place = end_place(files, place)
    name = place.root.name if place.root.parent == files.trials else subject.node
    opened = find_named_run(str(subject.folder))

    def state() -> TrialState | None:
        return next((one.state for one in opened.trials(region) if one.node == name), None)

    def note(words: str) -> None:
        why = f": trialfleet why {name}" if words == "waits" else ""
        say(f"{name} {words}{why}", err=True)

    output = TrialOutput(place, lines, state, say, partial(say, err=True))
    if follow:
        output.follow(note)
    elif words := output.show():
        note(words)


@click.command()
@run_argument
def stop(run: str | None) -> None:
    """Stop RUN. Finished trials are kept, and `trialfleet resume` continues with the others."""
    from trialfleet.workflows.views.terminal.status_view import money_lines, next_steps

    opened = find_named_run(run)
    with progress_lines(err=True) as progress:
        stopped = opened.stop(progress)
    say(stopped.state)
    for line, _ in money_lines(stopped):
        say(line)
    if stopped.state.can_resume:
        for line in next_steps(stopped):
            say(line)


@click.command()
@click.argument("names", metavar="RUN...", nargs=-1, shell_complete=completed_by_runs)
@click.option(
    "--planned", is_flag=True, help="Delete all runs in ./runs that were never submitted."
)
@click.option("--yes", is_flag=True, help="Don't ask.")
def remove(names: tuple[str, ...], planned: bool, yes: bool) -> None:
    """Delete the folders of ended runs. Their published models are kept."""
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.facts.runs.lookup import find_run

    if not names and not planned:
        raise InputError(
            "name the runs to remove, or give --planned; to list runs: trialfleet runs"
        )
    named = [Run(find_run(name)) for name in names]
    runs = [*named, *(_planned_runs() if planned else ())]
    opened = {run.folder: run for run in runs}.values()
    found = [(run, run.check_removable()) for run in opened]  # before the question
    for run, status in found:
        say(f"{run.study.name}/{run.run_id}  {status.state}  {run.folder}")
    if opened and not yes:
        refusal = (
            "nothing was removed, because there is no terminal to ask in; to remove, give --yes"
        )
        confirm(f"Remove {len(opened)} run(s)?", refusal)
    for run in opened:
        run.remove()
    say(f"removed {len(opened)} run(s)")


def _planned_runs() -> Iterator[Run]:
    """Yield the runs in ./runs that were never submitted, except those that can't be opened."""
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.facts.runs.lookup import runs_here

    for found in runs_here():
        if not found.submitted:
            try:
                yield Run(found.folder)
            except InputError as error:  # a moved run, say
                say(f"not removed: {error}", err=True)


@click.command()
@run_argument
@click.option(
    "--watch/--no-watch", "keep_watching", default=True, help="Watch until the run has ended."
)
def resume(run: str | None, keep_watching: bool) -> None:
    """Continue a RUN that was stopped or has failed."""
    from trialfleet.workflows.control.run.reopened_days import record_command

    opened = find_named_run(run)
    before = opened.status().root
    say(_resumed_text(before, submit_run(opened, opened.resume)))
    if line := record_command(opened.folder):
        say(line)
    if keep_watching:
        watch_to_the_end(opened)


def _resumed_text(before: str | None, now: str) -> str:
    if before == now:
        return f"the run is already running as job {now}: nothing was resumed"
    return f"resumed as job {now}"


@click.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Folder for the supervisor's list of runs (default: one in your state folder).",
)
def supervise(state: Path | None) -> None:
    """Repair stalled runs until this command is stopped.

    A pool that `trialfleet pool up` started, or a manager that `trialfleet manager install` set up,
    runs this command automatically. With an HTCondor that you installed yourself, run this command
    as a systemd service.
    """
    from trialfleet.workflows.control.dagman.supervisor import supervise_alone
    from trialfleet.workflows.facts.dagman.access_point import default_state

    supervise_alone(state if state is not None else default_state())


@click.command()
@run_to_name
def takeover(run: str) -> None:
    """Take ownership of RUN from another manager.

    Use this command if the other manager is lost and the study's `storage` is a database. This
    machine needs the run's folder. Finished trials are kept. If the other manager comes back, the
    run's regions stop on that manager's machine.
    """
    from trialfleet.workflows.facts.runs.lookup import find_run
    from trialfleet.workflows.facts.runs.run_storage import take_over
    from trialfleet.workflows.status.status_reader import open_run

    folder = open_run(find_run(run))
    previous = take_over(folder)
    at = shell_quoted(folder.root)
    say(f"taken over from {previous}" if previous else "no other manager owned the run")
    say(f"next: trialfleet resume {at}; if the run was never submitted: trialfleet submit {at}")
