"""A run's cost in the lab, compared with the fleet's record of its nodes' cost."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fleet.in_lab.test_lab_scaling import FLEET, TWO, autoscaling, wait_for_no_node
from tests.fleet.in_lab.work_in_lab import Work
from tests.fleet.lab.lab import Lab
from tests.fleet.lab.moto_side import ACCOUNT
from tests.fleet.lab.project import Project
from trialfleet.infra.fleet.scaling.instance_costs import Ledger, parse
from trialfleet.infra.fleet.spec import names

pytestmark = pytest.mark.thorough

PRICE = 0.40  # USD per hour of the lab's nodes
TRIALS = {"seconds": 0.5, "steps": 40, "mood": "sometimes"}


def record(lab: Lab) -> Ledger:
    """Return the fleet's record, in its bucket."""
    bucket, key = names.bucket_name("demo", ACCOUNT), f"{names.prefix('demo')}ledger.json"
    return parse(json.loads(str(lab.aws("s3", "get_object", Bucket=bucket, Key=key)["Body"])))


def test_a_runs_cost_equals_the_cost_of_its_nodes(project: Project, lab: Lab) -> None:
    policies = json.loads(project.trialfleet("fleet", "plan", "--policy", project.write_study()))
    lab.allow(policies["caller"])
    work = Work(project, "counted", TRIALS, fleet=FLEET, budget=TWO, retries=1, team="red")
    with autoscaling(project, "counted.yaml"):
        lab.wait_for(work.published, "the run's end", 240)
        wait_for_no_node(lab, 240)
        lab.wait_for(
            lambda: all(life.ended for life in record(lab).lifetimes.values()), "their ends noted"
        )
    spent = record(lab).cost(datetime.now(UTC))
    found = costs(project, "--by", "kind")
    assert found["total"]["usd"] == pytest.approx(spent, rel=0.01, abs=1e-6)
    assert found["notices"] == []
    kinds = {row["kind"]: row for row in found["rows"]}
    print(f"the record says {spent:.5f} USD, cost {found['total']['usd']:.5f}: {kinds}")
    working = {"trials", "between trials", "full trainings", "failed"}
    evicted = {"evicted"}  # a node that is drained may just have got a job
    assert kinds.keys() - evicted == {*working, "boot", "idle"}
    good, bad = sorted(work.finished().values(), key=lambda one: one["state"])
    assert (good["state"], bad["state"]) == ("complete", "failed")
    for trial in (good, bad):  # a GPU is all of its node
        assert trial["usd"] == pytest.approx(
            PRICE * trial["wall_seconds"] / 3600, rel=0.01, abs=1e-6
        )
    assert bad["lost_usd"] == bad["usd"]
    assert kinds["trials"]["usd"] == pytest.approx(good["usd"], rel=0.01, abs=1e-6)
    assert kinds["failed"]["usd"] == pytest.approx(bad["usd"], rel=0.01, abs=1e-6)
    status = json.loads(project.trialfleet("status", "--json", work.folder))
    jobs = found["total"]["work"] + found["total"]["lost"]
    assert status["regions"][0]["usd"] == pytest.approx(jobs, rel=0.01, abs=1e-6)
    teams = {row["team"]: row["usd"] for row in costs(project, "--by", "team")["rows"]}
    assert teams["red"] > 0.5 * spent


def costs(project: Project, *words: str) -> dict[str, Any]:
    """Return `trialfleet cost` of all runs."""
    found: dict[str, Any] = json.loads(project.trialfleet("cost", *words, "--json"))
    return found
