"""Costs of runs on a fleet, compared with its cost ledger; clock and AWS are simulated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import pytest

from tests.conftest import MakeRun
from tests.fleet.mock_aws.small_world import World, world
from trialfleet import Run
from trialfleet.errors import FleetError
from trialfleet.files import json_text, write_json
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle import down
from trialfleet.infra.fleet.scaling import cost_record
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.optimizer.storage import open_storage
from trialfleet.workflows.control.scripts.report_program import write_report
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import storage_url, study_name
from trialfleet.workflows.facts.runs.spending import read_spending
from trialfleet.workflows.rules.cost_sums import CostItem, Kind, add, sums
from trialfleet.workflows.status.costs.run_costs import read_costs

Plan = Callable[[World, str], Run]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is submitted here, so /tmp will do; and no HTCondor is asked."""
    monkeypatch.setenv("CONDOR_CONFIG", str(tmp_path / "no-such-config"))
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "no-such-pool"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


@pytest.fixture
def plan_on_fleet(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plan a run of a study with a world's fleet."""
    monkeypatch.chdir(work)

    def planned(here: World, run: str) -> Run:
        fleet = here.fleet.model_dump(mode="json", exclude_none=True)
        return make_run(run=run, out=work / "runs/demo" / run, fleet=fleet, team="red")

    return planned


def record_trial(run: Run, here: World, instance: str, minutes: float) -> None:
    """Put a trial into a run's study that has had all of a node until now."""
    listed = inventory.instances(here.account.aws, here.fleet, gone=True)
    (price,) = (one.price for one in listed if one.id == instance)
    assert price
    began = (here.now - timedelta(minutes=minutes)).timestamp()
    stay = {
        "machine": "m", "instance": instance, "began": began, "ended": here.now.timestamp(),
        "end": "done", "usd": price * minutes / 60,
    }  # fmt: skip
    storage = open_storage(storage_url(RunFolder(run.folder), run.study))
    name = study_name(run.study, run.run_id, "A")
    study = optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
    notes = {"node": "A.l1.t01", "params": {}, "job": {"usd": stay["usd"], "stays": [stay]}}
    study.add_trial(optuna.trial.create_trial(value=0.5, user_attrs=notes))


def hours(number: int) -> timedelta:
    return timedelta(hours=number)


def by_run(items: tuple[CostItem, ...]) -> dict[str, float]:
    return {one.key["run"]: one.usd or 0.0 for one in sums(items, ["run"])}


def test_the_costs_of_runs_add_up_to_the_fleets_record(plan_on_fleet: Plan) -> None:
    with world() as here:
        runs = {name: plan_on_fleet(here, name) for name in ("r1", "r2")}
        scaler = here.autoscaler("r1")
        here.waiting = 2
        scaler.step()
        here.waiting = 0
        here.later(minutes=3)
        used, unused = here.join(idle=None)
        scaler.step()
        for name, minutes in (("r1", 20), ("r2", 10)):
            here.later(minutes=minutes)
            record_trial(runs[name], here, used, minutes)
        down.terminate(here.account.aws, [one for one in here.living() if one.id == unused])
        here.pool.pop(unused)
        last = scaler.step()
        here.later(minutes=12)

        record = cost_record.load(here.account.aws, here.fleet)
        spent = record.cost(here.now)
        items = read_costs(now=here.now).items
        assert add(items).usd == pytest.approx(spent, rel=1e-6)
        price = record.lifetimes[used].price or 0
        kinds = {one.key["kind"]: one.usd or 0.0 for one in sums(items, ["kind"])}
        assert kinds[Kind.TRIAL] == pytest.approx(price * 0.5)
        booting = [life.joined - life.launched for life in record.lifetimes.values() if life.joined]
        assert len(booting) == 2
        assert kinds[Kind.BOOT] == pytest.approx(price * sum(booting, start=hours(0)) / hours(1))
        assert [one.key["team"] for one in sums(items, ["team"])] == ["red"]
        # the node that none used was asked for by r1; of the other's idle time it used two thirds
        idle = spent - kinds[Kind.TRIAL] - record.lifetimes[unused].cost(here.now)
        costs = by_run(items)
        assert costs["demo/r2"] == pytest.approx(price / 6 + idle / 3, rel=1e-6)
        assert sum(costs.values()) == pytest.approx(spent)
        own = read_costs(["r2"], now=here.now).items
        assert by_run(own) == pytest.approx({"demo/r2": costs["demo/r2"]})
        assert by_run(read_costs(["demo"], now=here.now).items) == pytest.approx(costs)

        # without AWS the autoscaler's report on this machine counts
        write_json(RunFolder(runs["r1"].folder).fleet_state, {"step": last})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trialfleet.infra.fleet.instances.inventory.list_by_region", refuse)
            found = read_costs(now=here.now)
        assert "only from the autoscaler's reports on this machine: no AWS" in found.notices[0]
        assert add(found.items).usd == pytest.approx(spent, rel=1e-6)

        # and the report says the same of its run, without asking AWS
        mine = add(read_costs(["r1"], now=here.now).items)
        log = RunFolder(runs["r2"].folder).dag_files.nodes_log
        log.touch()  # with the last event of r2's jobs
        os.utime(log, (here.now.timestamp(), here.now.timestamp()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trialfleet.infra.fleet.instances.inventory.list_by_region", refuse)
            report = write_report(RunFolder(runs["r1"].folder), here.now)
        assert report.boot_usd == pytest.approx(mine.boot, rel=1e-6)
        assert report.idle_usd == pytest.approx(mine.idle, rel=1e-6)
        assert "fleet: boot, idle" in RunFolder(runs["r1"].folder).report_page.read_text()


def test_status_and_cost_say_the_same_of_a_run_also_when_the_fleet_is_down(
    plan_on_fleet: Plan, cache: Path
) -> None:
    with world() as here:
        run = plan_on_fleet(here, "r1")
        folder = RunFolder(run.folder)
        scaler = here.autoscaler("r1")
        here.waiting = 1
        scaler.step()
        here.waiting = 0
        here.later(minutes=60)
        (used,) = here.join(idle=None)
        record_trial(run, here, used, 30)
        scaler.step()  # renews the lease
        step = json.loads(json_text(scaler.step()))
        write_json(folder.fleet_state, {"run": "r1", "state": "ended", "step": step})
        here.later(minutes=30)
        price = here.living()[0].price or 0.0

        def figures() -> tuple[float, float]:
            money = read_spending(folder, "r1", here.fleet, here.now)
            assert money
            bill = read_costs(["r1"], now=here.now)
            assert (bill.notices, bill.remarks) == ((), ())
            return money.spent, add(bill.items).usd or 0.0

        # moto has the real launch times, seconds after the start of this test's clock.
        expected = pytest.approx((price * 1.5, price * 1.5), rel=0.02)
        assert figures() == expected
        instances = down_at(here, here.now)
        keep = cost_record.load(here.account.aws, here.fleet).add_listing(instances, here.now)
        cost_record.keep(here.account.aws, here.fleet, keep)
        here.later(minutes=600)
        with pytest.MonkeyPatch.context() as patch:  # by then AWS has forgotten them
            patch.setattr(
                "trialfleet.infra.fleet.instances.inventory.list_instances", lambda *_: []
            )
            assert figures() == expected

        other = plan_on_fleet(here, "r2")
        record_trial(other, here, used, 10)
        (remark,) = read_costs(["r1"], now=here.now).remarks
        money = read_spending(folder, "r1", here.fleet, here.now)
        assert money
        words = f"`trialfleet status` shows {money.spent:.4f} USD, the cost of all of the"
        assert remark.startswith(words)


def down_at(here: World, moment: datetime) -> list[Instance]:
    """Return the fleet's instances as AWS lists them once they were ended then."""
    ended = [replace(one, state="terminated", ended_at=moment) for one in here.living()]
    down.down(here.account.aws, here.fleet, lambda _: None)
    return ended


def refuse(*_: object, **__: object) -> None:
    raise FleetError("no AWS")
