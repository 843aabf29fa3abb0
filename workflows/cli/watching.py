"""Commands that submit and watch a run: Ctrl-C, and at the end the results and the exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from trialfleet import ctrl_c
from trialfleet.files import shell_quoted
from trialfleet.workflows.views.output import console, say, show

if TYPE_CHECKING:
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.status.status_types import RunStatus


def submit_run(run: Run, submit: Callable[[], str]) -> str:
    """Submit a run and return the id of its DAGMan job.

    During the submission, Ctrl-C is delayed. Later, Ctrl-C ends the command, but not the run.
    """
    with ctrl_c.delay_ctrl_c():
        job = submit()
        ctrl_c.set_message(_after_ctrl_c(run))
    return job


def _after_ctrl_c(run: Run) -> str:
    name = shell_quoted(run.folder)
    return (
        f"the run continues\n  watch it: trialfleet status {name} --watch\n"
        f"  stop it:  trialfleet stop {name}"
    )


def watch_to_the_end(run: Run) -> NoReturn:
    """Show a run until it ends, then its results. Exit with 0 if the run is done, else 1."""
    from trialfleet.workflows.views.terminal.status_view import watch

    ctrl_c.set_message(_after_ctrl_c(run))
    ended = watch(run.wait, console())
    ctrl_c.set_message("the run has ended")
    show_end(run, ended)


def show_end(run: Run, ended: RunStatus) -> NoReturn:
    """Show an ended run's results and where its files are. Exit with 0 if it is done, else 1."""
    from trialfleet.workflows.facts.run_folder.folder import RunFolder
    from trialfleet.workflows.facts.runs.spending import has_autoscaler_ended
    from trialfleet.workflows.rules.states import RunState
    from trialfleet.workflows.views.report.report_reader import read_report
    from trialfleet.workflows.views.report.terminal_table import fitted_summary
    from trialfleet.workflows.views.terminal.status_view import money_lines, run_view

    terminal = console()
    if ended.money and has_autoscaler_ended(RunFolder(run.folder)):
        ended = run.status()  # again, with the autoscaler's last report
    if run.report.exists():
        terminal.print(fitted_summary(read_report(RunFolder(run.folder))))
    if ended.state is not RunState.DONE:
        show(run_view(ended))
    else:
        for region in ended.regions:
            warnings = () if run.report.exists() else region.warnings  # the report shows them
            for words in filter(None, (region.not_latest or region.gate, *warnings)):
                say(f"{region.name}: {words}")
        for line, _ in money_lines(ended):
            say(line)
    if any(region.published for region in ended.regions):
        say(f"models  {shlex.quote(run.study.publish)}")
    if run.report.exists():
        say(f"report  {shlex.quote(str(run.report))}")
    sys.exit(0 if ended.state is RunState.DONE else 1)
