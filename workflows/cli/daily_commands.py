"""The commands `trialfleet daily install`, `remove`, `run`, `backfill` and `status`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trialfleet import ctrl_c
from trialfleet.files import shell_quoted
from trialfleet.workflows.cli.arguments import Integer, date_option, day_option
from trialfleet.workflows.views.output import json_option, print_json, say, show

if TYPE_CHECKING:
    from trialfleet.workflows.views.terminal.days_table import DaysOverview

_SHOWN_DAYS = 14

study_argument: Callable[[Any], Any] = click.argument("study", type=click.Path(path_type=Path))


@click.group()
def daily() -> None:
    """Run a study each day unattended."""


@daily.command()
@study_argument
@click.option(
    "--system", is_flag=True, help="Use the machine's systemd instead of the user's; needs root."
)
def install(study: Path, system: bool) -> None:
    """Schedule STUDY with systemd, or with HTCondor where systemd does not run."""
    from trialfleet.workflows.control.daily.schedule import install as install_schedule

    install_schedule(study, say, system=system)


@daily.command()
@study_argument
def remove(study: Path) -> None:
    """Stop scheduling STUDY. A running day continues."""
    from trialfleet.workflows.control.daily.schedule import remove as remove_schedule

    remove_schedule(study, say)


@daily.command()
@study_argument
@date_option
def run(study: Path, day: date | None) -> None:
    """Start or resume the day's run of STUDY and wait for its end.

    You can repeat this command at any time. Any scheduler may call it, at `daily.at` or later.
    Without --date, the command works on the latest day that is due. The study's `daily.missed` says
    whether it also works on missed days.
    """
    from trialfleet.workflows.control.daily.day_loop import Days

    ctrl_c.set_message("a started run continues; to watch it again: trialfleet daily run")
    days = Days(study, say=say)
    done = days.run(day)
    _show_and_leave(days, done)


@daily.command()
@study_argument
@day_option("--from", "first", metavar="DATE", required=True, help="The first day.")
@day_option("--to", "last", metavar="DATE", required=True, help="The last day.")
@click.option(
    "--only",
    type=click.Choice(["missing"]),
    help="Train only regions that failed on a day or have no result. Without --only, the command"
    " fails if any region has succeeded on one of the days.",
)
@click.option("--yes", is_flag=True, help="Allow more than 100 days.")
def backfill(study: Path, first: date, last: date, only: str | None, yes: bool) -> None:
    """Run missed days of STUDY, oldest first.

    The models of these days never replace the current model of a later day.
    """
    from trialfleet.workflows.control.daily.day_loop import Days

    ctrl_c.set_message("a started run continues; to watch it again, repeat the command")
    days = Days(study, say=say)
    done = days.backfill(first, last, only_missing=only == "missing", however_many=yes)
    if not done:
        say(f"nothing is missing from {first} to {last}")
    _show_and_leave(days, done)


def _show_and_leave(days: Any, done: list[date]) -> None:
    from trialfleet.workflows.facts.journal.journal import Ending
    from trialfleet.workflows.status.day_outcomes import outcomes_now

    days.finish_telling()
    failed = False
    for day in done:
        counted = list(outcomes_now(days.journal, day, day).values())
        counts = {e: sum(one.ending is e for one in counted) for e in Ending}
        say(f"{day}: {', '.join(f'{n} {ending}' for ending, n in counts.items() if n)}")
        for one in counted:
            if one.why:
                say(f"  {one.region}: {one.ending}: {one.why}")
        failed = failed or counts[Ending.FAILED] > 0
    sys.exit(1 if failed else 0)


@daily.command()
@study_argument
@click.option(
    "--days",
    "most",
    type=Integer(min=1),
    default=_SHOWN_DAYS,
    show_default=True,
    help="Number of days to show, newest first.",
)
@json_option
def status(study: Path, most: int, as_json: bool) -> None:
    """Show the results of STUDY's days, then each region's result on the newest day."""
    from trialfleet.wall_clock import real_time
    from trialfleet.workflows.control.daily.late_data import waits_until_text
    from trialfleet.workflows.control.daily.missed_days import next_start_text
    from trialfleet.workflows.control.daily.overview import read_overview
    from trialfleet.workflows.views.terminal.days_table import (
        approval_commands,
        commands_to_copy,
        days_table,
        newest_table,
        reasons_table,
    )

    whole, folder, shown = read_overview(study, most)
    settings, now = whole.daily, real_time()
    if as_json:
        print_json(shown.to_json())
        return
    if shown.days:
        show(days_table(shown))
        show(newest_table(shown))
    else:
        say(f"no day of {shown.study} has started in {folder.root}")
        say("days are stored below the folder where `trialfleet daily` ran: change to that folder")
    if reasons := reasons_table(shown):
        show(reasons)
    for region, words in (shown.days[0].checks if shown.days else {}).items():
        say(f"{region}: {words}")
    for region, reason in shown.awaited.items():
        say(f"{region}: waits until {waits_until_text(settings, shown.days[0].date)}: {reason}")
    for line in (*commands_to_copy(shown), *approval_commands(shown)):
        say(line)
    away = (shown.models_away, shown.database_away)
    for line in filter(None, (*shown.undelivered, *away, str(shown.lease or ""))):
        say(line)
    _say_what_comes(study, next_start_text(settings, now) if settings else "", shown)


def _say_what_comes(study: Path, begins: str, shown: DaysOverview) -> None:
    if not begins:
        say("no further day starts, because the study no longer has a `daily:` table")
        if shown.clock:
            say(f"{shown.clock} is still installed; to remove it: trialfleet daily remove {study}")
    elif shown.clock_fault:
        say(f"next day is due {begins}")
        say(shown.clock_fault)
    elif shown.clock:
        say(f"next day starts {begins}")
        say(f"started by {shown.clock}")
    else:
        say("no schedule is installed: no day will start automatically")
        say(f"to start days from {begins} on: trialfleet daily install {shell_quoted(study)}")
