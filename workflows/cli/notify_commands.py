"""The commands about alerts: `trialfleet notify test`, `list` and `send`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trialfleet.errors import InputError
from trialfleet.files import shell_quoted
from trialfleet.workflows.views.output import json_option, print_json, say, show

if TYPE_CHECKING:
    from rich.table import Table

    from trialfleet.workflows.facts.journal.outbox import Delivery


@click.group()
def notify() -> None:
    """Test, list and send alerts."""


@notify.command()
@click.argument("study", type=click.Path(path_type=Path))
@json_option
def test(study: Path, as_json: bool) -> None:
    """Send a test event to each channel of STUDY's `notify:`. The exit code is 1 if one fails."""
    from trialfleet.workflows.control.notify.senders import SendError, send
    from trialfleet.workflows.facts.journal.event import TEST, Event, event_id
    from trialfleet.workflows.study.error_lines import errors_with_lines
    from trialfleet.workflows.study.loading import load_whole

    whole = load_whole(study)
    if not whole.notify:
        raise InputError(f"{study}: the study has no `notify:` list; see docs/alerts.md")
    with errors_with_lines(study):
        channels = whole.channels(study.absolute().parent)
    event = Event(
        id=event_id("test", study.absolute(), time.time_ns()),  # receivers drop a repeated id
        kind=TEST,
        study=whole.name,
        title=f"test: {whole.name}: alerts arrive",
        text="test: there is no problem; trialfleet notify test sent this.",
    )
    results = []
    for channel in channels:
        try:
            send(channel, [event])
            results.append({"channel": channel.title, "error": None})
        except SendError as error:
            results.append({"channel": channel.title, "error": str(error)})
    if as_json:
        print_json({"schema": 1, "event": event.to_json(), "channels": results})
    else:
        for one in results:
            say(f"{one['channel']}: {one['error'] or 'sent'}")
    sys.exit(1 if any(one["error"] for one in results) else 0)


@notify.command("list")
@click.argument("run_or_study", required=False)
@json_option
def list_(run_or_study: str | None, as_json: bool) -> None:
    """List the alerts of a run, or of a study's days.

    Without an argument, list the alerts of the newest run and of the days of that run's study.
    """
    from trialfleet.workflows.facts.journal.outbox import Outbox

    folders = _find_outboxes(run_or_study)
    there = [folder for folder in folders if (folder / "outbox.db").exists()]
    found = [one for folder in there for one in Outbox(folder).deliveries()]
    found.sort(key=lambda one: one.event.at)
    if as_json:
        fields = ("state", "tries", "error", "changed")
        print_json(
            [
                {"event": one.event.to_json(), "channel": one.title}
                | {name: getattr(one, name) for name in fields}
                for one in found
            ]
        )
        return
    if not found:
        say(f"no events yet in {' and '.join(map(str, folders))}")
        return
    show(_table(found))


@notify.command("send")
@click.argument("study", type=click.Path(path_type=Path))
def send_waiting(study: Path) -> None:
    """Send the waiting alerts of STUDY's days now.

    HTCondor repeats this command if an alert could not be sent at the end of a day. Run it yourself
    if you don't want to wait, for example after you repaired a channel.
    """
    from trialfleet.workflows.control.notify.delivery import deliver_all
    from trialfleet.workflows.facts.journal.folder import DailyFolder
    from trialfleet.workflows.facts.journal.outbox import Outbox
    from trialfleet.workflows.study.loading import load_whole

    folder = DailyFolder.for_study(load_whole(study).name).alerts
    if not (folder / "outbox.db").exists():
        say(f"no events yet in {folder}")
        return
    outbox = Outbox(folder)
    waited = len(outbox.waiting_deliveries())
    outbox.hurry()
    deliver_all(outbox, lambda: load_whole(study).channels(study.absolute().parent))
    left = len(outbox.waiting_deliveries())
    say(f"{waited - left} sent or abandoned, {left} left")
    say(f"to see the results: trialfleet notify list {shell_quoted(study)}")


def _find_outboxes(name: str | None) -> list[Path]:
    from trialfleet.workflows.facts.journal.folder import DailyFolder
    from trialfleet.workflows.facts.runs.lookup import find_run, runs_here
    from trialfleet.workflows.status.status_reader import open_run
    from trialfleet.workflows.study.loading import load_whole

    if name and Path(name).is_file():
        return [DailyFolder.for_study(load_whole(Path(name)).name).alerts]
    days = [DailyFolder(folder) for folder in Path.cwd().glob("runs/*")]
    if (
        name is None
        and not runs_here()
        and (with_days := [d.alerts for d in days if d.alerts.is_dir()])
    ):
        return with_days  # no day has a run
    run = open_run(find_run(name))
    return [run.alerts, *([DailyFolder(run.root.parent).alerts] if name is None else [])]


def _table(found: list[Delivery]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from trialfleet.workflows.formatting import local_time

    table = Table()
    for title in ("at", "event", "what", "channel", "state"):
        table.add_column(title, overflow="fold")
    for one in found:
        state = f"{one.state}: {one.error}" if one.error else one.state
        table.add_row(
            local_time(one.event.at),
            one.event.kind,
            Text(one.event.title),
            Text(one.title),
            Text(state),
        )
    return table
