"""A vacated job gets as much time as its agent needs to leave."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trialfleet import templates
from trialfleet.nodes.gang import agent as gang_agent
from trialfleet.nodes.job import events

TEMPLATES = Path(next(iter(templates.__path__)))


def number_in(template: str, setting: str) -> float:
    [found] = re.findall(rf"^{setting} = (\d+)$", (TEMPLATES / template).read_text(), re.MULTILINE)
    return float(found)


@pytest.mark.parametrize("config", ["condor/node.conf.j2", "condor/embedded.conf.j2"])
def test_an_agent_leaves_before_htcondor_kills_its_job(config: str) -> None:
    """HTCondor kills the job after the smaller of the machine's limit and the job's."""
    machine = number_in(config, "MachineMaxVacateTime")
    job = number_in("submit/trial.sub.j2", "job_max_vacate_time")
    longest = max(events.LEAVE_SECONDS, gang_agent.LEAVE_SECONDS)
    assert longest + 10 <= min(machine, job), "the agent ends the trainer at its end"
    assert number_in(config, "SHUTDOWN_GRACEFUL_TIMEOUT") > machine
