"""The checks of a day's table when its run is planned: what fails it, what warns, what is noted."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from tests.unit.serve.page_server import serving
from trialfleet import Run
from trialfleet.errors import InputError
from trialfleet.files import read_json
from trialfleet.nodes.tabular.table import TRAIN, write_table
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text
from trialfleet.workflows.control.daily.day_alerts import tell_days
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.notify.delivery import deliver
from trialfleet.workflows.control.plan.input_provenance import training_provenance
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.rules.unusual_tables import FEWEST_DAYS
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.loading import load_published
from trialfleet.workflows.study.notify import Channel
from trialfleet.workflows.study.paths import DataError
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.report.page_texts import attention
from trialfleet.workflows.views.report.report_reader import read_report

pytestmark = pytest.mark.slow  # each plans several days

FIRST = date(2026, 11, 1)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
ROWS = 400
TEXT: dict[str, Any] = {
    "name": "churn",
    "regions": ["north"],
    "data": "data/{region}-{date}.csv",
    "trainer": "tabular",
    "target": "churned",
    "objective": {"metric": "val_loss", "direction": "minimize"},
    "search_space": {"hidden": {"type": "int", "low": 8, "high": 64}},
    "budget": {"trials": 1},
    "accelerator": "cpu",
    "daily": {"at": "02:30", "zone": "UTC"},
}


def day_of(number: int) -> date:
    return FIRST + timedelta(days=number)


def frame(seed: int, rows: int = ROWS) -> pl.DataFrame:
    """Return a day's rows; the amount decides whether a customer leaves."""
    dealt = np.random.default_rng(seed)
    amount = dealt.normal(50, 10, rows)
    leaves = amount + dealt.normal(0, 10, rows) > 60
    return pl.DataFrame(
        {
            "amount": amount.round(2),
            "age": dealt.integers(18, 90, rows),
            "plan": dealt.choice(["free", "pro", "team"], rows),
            "churned": np.where(leaves, "yes", "no"),
        }
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def study(place: Path, day: date, **changes: Any) -> Study:
    return Study.model_validate({**TEXT, **changes}).fill_date(day)[0].resolve(place)


def planned(place: Path, number: int, rows: pl.DataFrame, **changes: Any) -> RegionFolder:
    """Plan the run of a day on which the region has these rows."""
    day = day_of(number)
    rows.write_csv(place / f"data/north-{day}.csv")
    folder = DailyFolder.for_study("churn").run(str(day))
    write_plan(study(place, day, **changes), run=str(day), out=folder, day=RunsDay(date=day))
    return RunFolder(folder).region("north")


def record_end(number: int, ending: Ending = Ending.PUBLISHED) -> None:
    """Record how the region record_end a day."""
    day = day_of(number)
    journal = Journal(DailyFolder.for_study("churn").journal)
    one = Attempt(
        date=day, attempt=1, run=str(day), regions=("north",), started=NOON, deadline=None
    )
    journal.end(journal.begin(one), NOON)
    journal.record([one.outcome("north", ending, "", run=str(day))], NOON)


def some_days(place: Path, count: int = FEWEST_DAYS, **changes: Any) -> None:
    for number in range(count):
        planned(place, number, frame(number), **changes)
        record_end(number)


FAIL = {"rows": "fail", "missing": "fail", "new_categories": "fail", "target": "fail"}
GARBAGE = {
    "rows": (
        frame(9, 60),
        "checks.rows: 60, where 280 to 520 are usual; correct the file, or set checks: ",
    ),
    "missing": (
        frame(9).with_columns(age=pl.when(pl.int_range(ROWS) % 3 > 0).then("age")),
        r"checks.missing: 33.5% of column 'age', where up to 6% is usual;",
    ),
    "missing: gone": (frame(9).drop("age"), "checks.missing: column 'age' is gone;"),
    "missing: empty": (
        frame(9).with_columns(age=pl.lit(None, pl.Int64)),
        "checks.missing: 100% of column 'age', where up to",
    ),
    "new_categories": (
        frame(9).with_columns(plan=pl.col("plan").replace("team", "Team ")),
        r"checks.new_categories: \S+% of column 'plan' \('Team'\), where up to \S+% is usual;",
    ),
    "target": (
        frame(9).with_columns(churned=pl.col("churned").replace({"yes": "no", "no": "yes"})),
        "checks.target: .*% are 'no', where .*% to .*% is usual",
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_day_unlike_the_past_ones_fails_before_it_has_a_run(place: Path, name: str) -> None:
    rows, words = GARBAGE[name]
    some_days(place)
    with pytest.raises(DataError) as caught:
        planned(place, 3, rows, checks=FAIL)
    [line] = caught.value.by_region["north"]
    assert re.search(words, line), line
    assert line.startswith(f"data/north-{day_of(3)}.csv: ")
    assert not DailyFolder.for_study("churn").run(str(day_of(3))).exists()


@pytest.mark.parametrize("name", GARBAGE)
def test_an_unusual_day_is_planned_with_a_warning_by_default(place: Path, name: str) -> None:
    some_days(place)
    files = planned(place, 3, GARBAGE[name][0])
    check = name.partition(":")[0]
    assert read_json(files.checks)["reason"].startswith(f"its new table is unusual: {check}: ")


@pytest.mark.parametrize("name", GARBAGE)
def test_a_check_that_is_off_finds_nothing(place: Path, name: str) -> None:
    some_days(place)
    off = dict.fromkeys(FAIL, "off")
    assert read_json(planned(place, 3, GARBAGE[name][0], checks=off).checks)["reason"] is None


@pytest.mark.parametrize("ending", [Ending.FAILED, None])
def test_past_days_without_a_model_are_not_compared(place: Path, ending: Ending | None) -> None:
    some_days(place, FEWEST_DAYS - 1)
    planned(place, 2, frame(2))
    if ending:
        record_end(2, ending)
    noted = read_json(planned(place, 3, frame(3, 50), checks=FAIL).checks)
    assert noted == {"schema": 1, "days": 2, "reason": None}


def test_a_day_is_compared_with_those_before_it_alone(place: Path) -> None:
    for number in range(1, FEWEST_DAYS + 1):
        planned(place, number, frame(number))
        record_end(number)
    assert read_json(planned(place, 0, frame(0, 50), checks=FAIL).checks)["days"] == 0


def test_a_damaged_profile_of_a_past_day_is_ignored(place: Path) -> None:
    some_days(place, FEWEST_DAYS + 1)
    damaged = DailyFolder.for_study("churn").run(str(day_of(0))) / "regions/north/profile.json"
    damaged.write_text('{"rows": "many"')
    assert read_json(planned(place, 5, frame(5)).checks)["days"] == FEWEST_DAYS


def test_shuffled_labels_fail_a_first_day(place: Path) -> None:
    shuffled = frame(0, 1000).with_columns(churned=frame(1, 1000)["churned"])
    with pytest.raises(InputError, match=r"labels: .* no better than shuffled labels") as caught:
        planned(place, 0, shuffled, checks={"labels": "fail"})
    assert "columns predict 'churned' no better than" in str(caught.value)
    planned(place, 1, frame(1), checks={"labels": "fail"})


def test_an_npz_is_checked_as_a_csv_is(place: Path) -> None:
    def write(number: int, rows: int) -> RegionFolder:
        dealt, day = np.random.default_rng(number), day_of(number)
        x = dealt.normal(size=rows)
        parts = np.arange(rows) % 3 + TRAIN
        columns = {"x": x, "churned": x + dealt.normal(size=rows)}
        file = place / f"data/north-{day}.npz"
        write_table(file, columns, target="churned", task="regression", split=parts)
        npz = {"data": "data/{region}-{date}.npz", "checks": FAIL}
        folder = DailyFolder.for_study("churn").run(str(day))
        write_plan(study(place, day, **npz), run=str(day), out=folder, day=RunsDay(date=day))
        record_end(number)
        return RunFolder(folder).region("north")

    for number in range(FEWEST_DAYS):
        assert read_json(write(number, ROWS).checks)["reason"] is None
    with pytest.raises(InputError, match=r"checks\.rows: 90, where"):
        write(3, 90)


def test_a_run_without_a_day_is_not_checked(place: Path) -> None:
    frame(0, 40).write_csv(place / "data/north.csv")
    plain = study(place, FIRST, data="data/{region}.csv")
    folder = write_plan(plain, run="r1", out=place / "runs/churn/r1")
    assert not folder.region("north").checks.exists()


UNUSUAL = "its new table is unusual: rows: 60, where 280 to 520 are usual"


@pytest.fixture
def warned(place: Path) -> RegionFolder:
    """A day with too few rows, planned all the same."""
    some_days(place)
    return planned(place, 3, frame(9, 60))


def test_all_views_of_a_run_show_its_check_warnings(warned: RegionFolder) -> None:
    run = Run(warned.root.parent.parent)
    assert f"  checks   north: {UNUSUAL}" in plan_text(run)
    [region] = plan_summary(run)["regions"]
    assert region["checks"] == {"days": 3, "reason": UNUSUAL}
    assert run.status().regions[0].checks == UNUSUAL
    assert f"north: {UNUSUAL}" in printed("status", str(run.folder))
    assert UNUSUAL in printed("why", "north", "--run", str(run.folder))
    report = read_report(RunFolder(run.folder))
    assert [(one.reason, len(one.regions)) for one in attention(report)] == [(UNUSUAL, 1)]


def test_the_page_of_a_region_shows_its_check_warnings(warned: RegionFolder, place: Path) -> None:
    with serving(place) as server:
        links = re.findall(r'href="(/runs/[^"]*/regions/north)"', server.ask("/").text)
        assert UNUSUAL in server.ask(links[0]).text


def test_the_provenance_of_a_model_has_its_check_warnings(warned: RegionFolder) -> None:
    run = RunFolder(warned.root.parent.parent)
    found = training_provenance(run, "north", load_frozen(run.study).study)
    assert found["checks"] == UNUSUAL
    warned.checks.unlink()
    assert "checks" not in training_provenance(run, "north", load_frozen(run.study).study)


def test_the_table_of_days_and_the_digest_show_check_warnings(
    warned: RegionFolder, place: Path
) -> None:
    record_end(3)
    file = place / "study.yaml"
    file.write_text(json.dumps(TEXT))  # JSON is YAML
    assert f"north: {UNUSUAL}" in printed("daily", "status", str(file))
    days = json.loads(CliRunner().invoke(main, ["daily", "status", str(file), "--json"]).output)
    assert [day["checks"] for day in days["days"]] == [{"north": UNUSUAL}, {}, {}, {}]
    heard = place / "heard"
    channel = Channel.model_validate(
        {"command": ["sh", "-c", f"cat >> '{heard}'; echo >> '{heard}'"]}
    )
    folder = DailyFolder.for_study("churn")
    outbox = Outbox(folder.alerts)
    tell_days(load_published(file), [channel], outbox, folder, Journal(folder.journal), NOON)
    deliver(outbox, [channel])
    digest = next(line for line in heard.read_text().splitlines() if str(day_of(3)) in line)
    event = json.loads(digest)
    assert f"north: {UNUSUAL}" in event["text"].splitlines()
    assert event["data"]["regions"][0]["checks"] == UNUSUAL


def test_a_region_that_failed_a_check_is_retried_when_its_file_changes(
    place: Path,
) -> None:
    some_days(place)
    with pytest.raises(DataError) as caught:
        planned(place, 3, frame(9, 60), checks=FAIL)
    (place / "study.yaml").write_text(json.dumps(TEXT))
    days = Days(place / "study.yaml", clock=lambda: NOON)
    attempt = days._begin(day_of(3), ["north"])
    days._work.fail(attempt, {"north": caught.value.by_region["north"][0]})
    days.journal.end(attempt, NOON)
    data = place / f"data/north-{day_of(3)}.csv"
    os.utime(data, (NOON.timestamp() - 60,) * 2)
    assert days._newly_arrived(day_of(3)) == []
    os.utime(data, (NOON.timestamp() + 60,) * 2)
    assert days._newly_arrived(day_of(3)) == ["north"]


def printed(*words: str) -> str:
    return " ".join(CliRunner().invoke(main, words).output.split())
