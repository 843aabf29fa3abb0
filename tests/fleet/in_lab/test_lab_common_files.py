"""In the lab: the node to which a region's files were sent is interrupted, again and again."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest

from tests.fleet.in_lab.test_lab_faults import runs_elsewhere
from tests.fleet.in_lab.work_in_lab import FIRST, LANE, Work
from tests.fleet.lab.lab import Lab
from tests.fleet.lab.project import HOME, Project

pytestmark = pytest.mark.thorough
INTERRUPTIONS = 2  # a third within ten minutes is a trouble in status
NODES = INTERRUPTIONS + 1
ELSEWHERE = 60  # seconds; an idle machine needs about 5
LONG = {"seconds": 0.5, "steps": 1000}


def test_a_repeatedly_interrupted_trial_starts_on_another_node_each_time(
    project: Project, lab: Lab
) -> None:
    up = project.write_study(fleet={"nodes": {"max": NODES}})
    project.trialfleet("fleet", "up", up, "--nodes", str(NODES), "--wait")
    project.manager.write(f"{HOME}/rows.csv", "x\n" + "1\n" * 6_000_000, user="ubuntu")
    work = Work(
        project,
        "interrupted",
        LONG,
        fleet={"nodes": {"max": NODES}},
        regions={"A": {"data": ["rows.csv"]}},
        budget={"trials": 1, "lanes": 1},
    )
    lab.wait_for(lambda: work.where().get(FIRST), "a trial that runs")
    for _ in range(INTERRUPTIONS):
        place = work.where()[FIRST]
        lab.interrupt(place, seconds=20)
        began = time.monotonic()
        lab.wait_for(partial(runs_elsewhere, work, place), "it elsewhere", ELSEWHERE)
        print(f"the trial runs elsewhere {time.monotonic() - began:.0f} s after the notice")
    log = project.file(f"interrupted/regions/A/trials/{LANE}/log")
    assert log.count("Common files event: TransferFinished") == 1
    status = json.loads(project.trialfleet("status", "--json", work.folder))
    assert (status["repairs"], status["troubles"]) == ([], [])
