"""Alerts of days whose channels are unreachable: a job sends them later, no work waits for them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from tests.pool.test_daily import here, write_study
from trialfleet.infra.pool import schedd
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.dagman.alert_and_export_processes import Watchers
from trialfleet.workflows.control.dagman.supervisor import held_schedules
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.daily.htcondor_timer import job_there
from trialfleet.workflows.control.daily.schedule import find_schedule, install, remove
from trialfleet.workflows.control.daily.systemd_timer import Units
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.outbox import Outbox

pytestmark = pytest.mark.usefixtures("pool")
__all__ = ["here"]

DAY = date(2026, 11, 20)


@pytest.fixture(autouse=True)
def _no_sender_is_left(here: Path) -> Iterator[None]:
    """Other tests count the jobs of the same pool."""
    yield
    ours = f'TrialfleetAlerts == "{DailyFolder.for_study("demo").root}"'
    schedd.apply_action("Remove", ours, "the test is over")


def cli(*words: str) -> str:
    return CliRunner().invoke(main, words).output


def test_an_unreachable_channel_gets_its_alerts_when_it_is_back(
    here: Path, wait_for: Callable[..., None]
) -> None:
    """With data that isn't there, so that the day takes no run; and its sender is killed."""
    heard, works = here / "heard", here / "works"
    script = (
        f"test -e '{works}' || {{ echo away >&2; exit 1; }}; cat >> '{heard}'; echo >> '{heard}'"
    )
    file = write_study(here, notify=[{"command": ["sh", "-c", script]}])
    said = cli("daily", "run", str(file), "--date", str(DAY))
    found = re.search(r"alerts: 3 not delivered: .*; HTCondor's job (\d+\.0) retries", said)
    assert found, said
    folder = DailyFolder.for_study("demo")
    ours = f'TrialfleetAlerts == "{folder.root}"'
    waits = "sh: ended with exit code 1: away (3 waiting, retried at"
    assert waits.partition(": ")[2] in " ".join(cli("daily", "status", str(file)).split())
    assert f"job {found[1]} retries" in cli("daily", "run", str(file), "--date", str(DAY))

    def senders() -> list[int]:
        words = ["notify", "send", str(file)]
        found = psutil.process_iter(["cmdline"])
        return [each.pid for each in found if (each.info["cmdline"] or [])[-3:] == words]

    wait_for(senders)
    [first] = senders()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: senders() not in ([], [first]))
    works.touch()
    wait_for(heard.exists, 90)
    wait_for(lambda: not Outbox(folder.alerts).waiting_deliveries(), 60)
    assert heard.read_text().count('"event"') == 3
    wait_for(lambda: not schedd.query(ours, ["ClusterId"]), 60)
    assert "3 sent or abandoned, 0 left" in folder.send_log.read_text()


def test_a_day_that_has_ended_does_not_wait_for_its_alerts(here: Path) -> None:
    file = write_study(here, notify=[{"command": ["false"]}])
    Days(file).run(DAY)
    outbox = Outbox(DailyFolder.for_study("demo").alerts)
    with outbox.hold_lock(wait=True):  # a mail server that hangs
        days = Days(file)
        days.run(DAY)
        days.finish_telling()


def test_a_held_job_of_the_schedule_is_an_alert_until_it_is_released(
    here: Path, wait_for: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Units, "can_be_used", lambda _: False)
    heard = here / "heard"
    file = write_study(here, notify=[{"command": ["sh", "-c", f"cat >> '{heard}'"]}])
    install(file, lambda _: None)
    folder = DailyFolder.for_study("demo")
    job = job_there(folder)
    assert job is not None
    assert held_schedules(0) == []
    schedd.apply_action("Hold", f"ClusterId == {float(job[0]):.0f}", "by hand")
    assert held_schedules(600) == []
    assert held_schedules(0) == [folder]
    watchers = Watchers()
    watchers.check([], [folder])
    wait_for(lambda: Outbox(folder.alerts).sent_events(), 60)
    alert = json.loads(heard.read_text())
    _, fault = find_schedule("demo", folder)
    assert fault.endswith(f": condor_release {job[0]}")
    assert (alert["event"], alert["title"]) == ("attention", f"demo: no day starts: {fault}")
    schedd.apply_action("Release", f"ClusterId == {float(job[0]):.0f}", "by hand")
    [(process, _)] = watchers._processes.values()
    assert process.wait(60) == 0
    remove(file, lambda _: None)
