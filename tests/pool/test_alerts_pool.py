"""Alerts on a real pool: its supervisor looks at the run, and a program hears of its events."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor
from trialfleet import Run, RunState
from trialfleet.workflows.dagman.watchers import PROGRAM
from trialfleet.workflows.notify.outbox import Outbox
from trialfleet.workflows.plan.folder import RunFolder

pytestmark = pytest.mark.usefixtures("pool")


def heard(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def watchers_of(run: Run) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if {PROGRAM, str(run.folder)} <= set(process.info["cmdline"] or ())
    ]


def test_a_region_s_failure_and_the_end_are_told_once_although_the_teller_is_killed(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    file = work / "heard"
    tell = ["sh", "-c", f"cat >> '{file}'; echo >> '{file}'"]
    run = make_run({"mood": "fails"}, retries=0, notify=[{"command": tell}])
    run.submit()
    wait_for(lambda: watchers_of(run))
    os.kill(watchers_of(run)[0], signal.SIGKILL)  # the supervisor starts another
    assert run.wait().state is RunState.FAILED
    wait_for(lambda: len(heard(file)) >= 2)
    wait_for(lambda: not watchers_of(run))
    failed, done = heard(file)
    assert (failed["event"], failed["region"]) == ("region-failed", "A")
    assert "exit code 1" in failed["title"]
    assert done["event"] == "run-done"
    assert done["data"]["regions"][0]["state"] == "failed"
    outbox = Outbox(RunFolder(run.folder).alerts)
    assert [one.state for one in outbox.deliveries()] == ["sent", "sent"]
