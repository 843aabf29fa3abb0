"""A run's cost, from the slots' ads to `trialfleet cost`, on real pools."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.pool.conftest import MakePool
from tests.pool.watching import active
from trialfleet import Run, RunState
from trialfleet.workflows.cli.main import main

# Of two cores and 4 GB, of which a trial has a core and about a fortieth: half of half, and a bit.
PRICED = """
TrialfleetPricePerHour = 3.6
STARTD_ATTRS = $(STARTD_ATTRS) TrialfleetPricePerHour
"""


def output_of(*words: str) -> str:
    """Return a command's output."""
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def costs(run: Run, by: str) -> dict[str, dict[str, float]]:
    """Return the rows of `trialfleet cost`, by one key."""
    found = json.loads(output_of("cost", str(run.folder), "--by", by, "--json"))
    assert found["notices"] == []
    return {row[by]: row for row in found["rows"]}


def test_a_trials_cost_is_its_nodes_price_for_its_share_and_time(
    make_pool: MakePool, make_run: MakeRun
) -> None:
    with active(make_pool(memory_mb=4000, extra=PRICED)):
        run = make_run({"mood": "sometimes"}, retries=1, budget={"trials": 2, "lanes": 1})
        run.submit()
        status = run.wait()
        assert status.state is RunState.DONE, status
        good, bad = run.trials()
        for trial in (good, bad):
            assert trial.usd is not None
            assert trial.wall_seconds is not None
            # a dollar for 1000 s of all of the node; memory is given out in steps of 128 MB
            share = 0.5 * (1 / 2 + 128 / 4000)
            assert trial.usd == pytest.approx(trial.wall_seconds * share / 1000, rel=1e-3)
        assert good.lost_usd == 0
        assert (bad.state, bad.attempts) == ("failed", 2)
        assert bad.lost_usd == bad.usd
        by_kind = costs(run, "kind")
        assert by_kind.keys() == {"trials", "full trainings", "failed", "between trials"}
        assert by_kind["trials"]["usd"] == pytest.approx(good.usd, abs=1e-5)
        assert by_kind["failed"]["lost"] == pytest.approx(bad.usd, abs=1e-5)
        (region,) = status.regions
        assert costs(run, "region")["A"]["usd"] == pytest.approx(region.usd, abs=1e-5)
        rows = list(csv.DictReader(io.StringIO(output_of("trials", str(run.folder), "--csv"))))
        assert float(rows[0]["usd"]) == good.usd
        report = json.loads((run.folder / "report.json").read_text())
        assert report["usd"] == pytest.approx(region.usd, abs=1e-5)
        assert "full trainings" in output_of("cost", str(run.folder), "--by", "kind")


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_region_whose_money_is_spent_publishes_what_is_best_so_far(make_run: MakeRun) -> None:
    budget = {"trials": 6, "lanes": 1, "usd": 1e-6}
    run = make_run(usd_per_hour=1.0, budget=budget)
    run.submit()
    status = run.wait()
    assert status.state is RunState.DONE, status
    (trial,) = run.trials()  # the first: the cost of a trial was unknown
    assert trial.usd
    (region,) = status.regions
    assert region.published
    assert region.spent
    assert region.spent.startswith("budget.usd of 1e-06 USD is used up")
    assert f"no more trials: {region.spent}" in output_of("status", str(run.folder))
    assert costs(run, "kind").keys() == {"trials", "full trainings", "between trials"}
