"""A manager whose clock was set back: its supervisor may restart HTCondor's daemons."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.fleet.lab.lab import Lab
from tests.fleet.lab.project import Project

pytestmark = pytest.mark.thorough
RESET_TIMERS = """
import logging, time
from pathlib import Path
from trialfleet.workflows.control.dagman.clock_set_back import ClockWatch
logging.basicConfig(level=logging.INFO)
watch = ClockWatch(Path("clock.json"))
watch.check(9000.0, 10.0)
for seconds in range(30):  # a daemon that did not answer is asked again
    watch.check(6000.0 + seconds, 10.0 + seconds)
    if not watch._left:
        break
    time.sleep(1)
else:
    raise SystemExit(f"{watch._left} failed")
"""
DAEMONS = {"condor_collector", "condor_negotiator", "condor_schedd"}


def test_the_managers_user_may_restart_its_daemons_after_a_clock_change(
    project: Project, lab: Lab
) -> None:
    before = daemons(project)
    assert set(before) == DAEMONS
    project.run(shlex.join([sys.executable, "-c", RESET_TIMERS]))
    lab.wait_for(lambda: set(daemons(project)) == DAEMONS, "the daemons")
    after = daemons(project)
    assert after["condor_schedd"] != before["condor_schedd"]
    assert after["condor_negotiator"] != before["condor_negotiator"]
    assert after["condor_collector"] == before["condor_collector"]


def daemons(project: Project) -> dict[str, str]:
    """Return the numbers of the manager's processes, by their names."""
    lines = project.manager.run("ps -eo pid=,args=").stdout.splitlines()
    found = {Path(program).name: pid for pid, program, *_ in map(str.split, lines)}
    return {name: pid for name, pid in found.items() if name in DAEMONS}
