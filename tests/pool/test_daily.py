"""Days of a study on a real pool: each region's day ends once, whatever is killed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from tests.conftest import MOODY
from tests.pool.conftest import CPUS
from trialfleet import Run
from trialfleet.files import read_json
from trialfleet.infra.pool import connection, schedd
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.daily.schedule import find_schedule, install, remove
from trialfleet.workflows.control.daily.systemd_timer import Units
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Ending
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.status.day_outcomes import outcomes_now

pytestmark = pytest.mark.usefixtures("pool")

FIRST, SECOND, THIRD = (date(2026, 11, n) for n in (20, 21, 22))


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    return work


def write_study(folder: Path, **changes: object) -> Path:
    study = {
        "name": "demo",
        "regions": ["A", "B"],
        "data": "data/{region}/{date}.txt",
        "objective": {"metric": "loss", "direction": "minimize"},
        "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "budget": {"trials": 1, "lanes": 1},
        "trainer": {"command": ["python3", MOODY.name], "files": [str(MOODY)]},
        "resources": {"memory": "100MB", "disk": "20MB"},
        "accelerator": "cpu",
        "daily": {"at": "02:30", "zone": "UTC"},
    } | changes
    file = folder / "study.yaml"
    with file.open("w") as stream:
        YAML(typ="safe").dump(study, stream)
    return file


def put_data(folder: Path, day: date, **contents: str) -> None:
    for region, content in contents.items():
        place = folder / "data" / region / f"{day}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)


def endings(days: Days, day: date) -> dict[str, Ending]:
    return {one.region: one.ending for one in days.journal.outcomes(day, day)}


def latest(folder: Path, region: str) -> str:
    return (folder / "models" / "demo" / region / "latest").resolve().name


def test_days_end_by_region_and_a_backfill_does_not_replace_latest(here: Path) -> None:
    put_data(here, FIRST, A="1")
    put_data(here, SECOND, A="1", B="2")
    days = Days(write_study(here), clock=lambda: datetime(2026, 11, 22, 12, tzinfo=UTC))

    days.run(FIRST)
    assert endings(days, FIRST) == {"A": Ending.PUBLISHED, "B": Ending.FAILED}
    (failed,) = (one for one in days.journal.outcomes() if one.region == "B")
    assert failed.why == f"data of {FIRST} isn't there: {here}/data/B/{FIRST}.txt"

    days.run(SECOND)
    assert endings(days, SECOND) == {"A": Ending.UNCHANGED, "B": Ending.PUBLISHED}
    assert not (here / "runs" / "demo" / str(SECOND) / "regions" / "A").exists()

    put_data(here, FIRST, B="3")
    assert days.backfill(FIRST, SECOND, only_missing=True) == [FIRST]
    last = days.journal.outcomes(FIRST, FIRST)[-1]
    assert (last.region, last.attempt, last.run) == ("B", 2, f"{FIRST}-2")
    assert last.ending is Ending.KEPT
    assert f"{SECOND}, which is of a later day; to change" in last.why
    assert (latest(here, "A"), latest(here, "B")) == (str(FIRST), str(SECOND))
    assert days.backfill(FIRST, SECOND, only_missing=True) == []


@pytest.mark.thorough
def test_late_data_starts_a_second_run_and_nothing_is_trained_twice(
    here: Path, wait_for: Callable[..., None]
) -> None:
    """While the region whose data was there trains; whoever works on the day is killed between."""
    program = Path(__file__).with_name("daily_program.py")
    daily = {"at": "02:30", "zone": "UTC", "wait_for_data": "3h", "ready_file": "_SUCCESS"}
    file = write_study(here, regions=["A", "B", "C"], daily=daily, trainer=slow_trainer(here))
    put_data(here, FIRST, A="1", B="2")
    (here / "data/A/_SUCCESS").touch()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(program), str(file), f"{FIRST}T02:31+00:00"])

    days = Days(file)
    first = start()
    place = days.folder.run(str(FIRST))
    wait_for((place / "study.json").exists, 60)
    wait_for(lambda: Run(place).status().regions[0].running, 120)
    assert "C: waits until" not in CliRunner().invoke(main, ["daily", "status", str(file)]).output
    put_data(here, FIRST, C="3")
    for region in "BC":
        (here / "data" / region / "_SUCCESS").touch()
    wait_for(lambda: len(days.journal.attempts()) == 2, 240)
    first.kill()
    first.wait()
    assert not days.journal.attempts()[0].ended, "the first run goes on beside the second"
    (here / "go").touch()
    second = start()
    assert second.wait(400) == 0
    assert [(one.attempt, one.regions) for one in days.journal.attempts()] == [
        (1, ("A", "B", "C")),
        (2, ("B", "C")),
    ]
    assert sorted((one.region, one.run) for one in days.journal.outcomes()) == [
        ("A", str(FIRST)),
        ("B", f"{FIRST}-2"),
        ("C", f"{FIRST}-2"),
    ], "each region once; B and C end in either order"
    assert set(endings(days, FIRST).values()) == {Ending.PUBLISHED}


def slow_trainer(here: Path) -> dict[str, object]:
    """Return a trainer that waits for a file before it reports."""
    text = f"while [ ! -e '{here}/go' ]; do sleep 0.2; done; exec python3 {MOODY.name}\n"
    (here / "slow.sh").write_text(text)
    return {"command": ["sh", "slow.sh"], "files": ["slow.sh", str(MOODY)]}


TABULAR: dict[str, object] = {
    "data": "data/{region}/{date}.csv",
    "trainer": "tabular",
    "target": "churned",
    "objective": {"metric": "val_auc", "direction": "maximize"},
    "search_space": {"hidden": {"type": "int", "low": 8, "high": 64}},
}


@pytest.mark.thorough
def test_a_region_with_a_failed_check_is_left_out_until_the_check_only_warns(here: Path) -> None:
    now = datetime.now(UTC) + timedelta(seconds=10)  # the data is older
    strict = {**TABULAR, "checks": {"rows": "fail"}, "notify": [{"command": ["true"]}]}
    strict["resources"] = {"memory": "1GB", "disk": "100MB"}
    days = Days(write_study(here, **strict), clock=lambda: now)
    before = [FIRST - timedelta(days=number) for number in (2, 1, 0)]
    for day in [*before, SECOND]:
        for region in "AB":
            few = day == SECOND and region == "B"
            lines = (f"{n * 7 % 50},{'yes' if n * 7 % 50 > 30 else 'no'}\n" for n in range(200))
            place = here / "data" / region / f"{day}.csv"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("amount,churned\n" + "".join(lines if not few else [*lines][:60]))
    for day in before:  # planned, and taken as published
        attempt = days._begin(day, ["A", "B"])
        list(days._work._find_or_plan_run(attempt))  # which submits nothing
        ends = [attempt.outcome(r, Ending.PUBLISHED, "", run=attempt.run) for r in "AB"]
        days.journal.record(ends, now)
        days.journal.end(attempt, now)

    attempt = days._begin(SECOND, ["A", "B"])
    list(days._work._find_or_plan_run(attempt))  # which submits nothing
    assert list(Run(days.folder.run(str(SECOND))).study.region_table) == ["A"]
    (failed,) = days.journal.outcomes(SECOND, SECOND)
    assert (failed.region, failed.ending, failed.run) == ("B", Ending.FAILED, None)
    assert "checks.rows: 60, where 140 to 260 are usual; correct the file, or set " in failed.why
    titles = [one.event.title for one in Outbox(days.folder.alerts).deliveries()]
    assert any(f"demo {SECOND}: B: failed: " in title and "60, where" in title for title in titles)
    days.journal.record([attempt.outcome("A", Ending.PUBLISHED, "", run=attempt.run)], now)
    days.journal.end(attempt, now)
    assert days._newly_arrived(SECOND) == []

    strict["checks"] = {"rows": "warn"}
    again = Days(write_study(here, **strict), clock=lambda: now)
    assert again.backfill(SECOND, SECOND, only_missing=True) == [SECOND]
    last = again.journal.outcomes(SECOND, SECOND)[-1]
    assert (last.region, last.ending, last.run) == ("B", Ending.PUBLISHED, f"{SECOND}-2")
    unusual = "its new table is unusual: rows: 60, where 140 to 260 are usual"
    assert read_json(here / "models/demo/B/latest/card.json")["checks"] == unusual
    shown = CliRunner().invoke(main, ["daily", "status", str(here / "study.yaml")]).output
    assert f"B: {unusual}" in " ".join(shown.split())


def test_a_table_that_cant_be_trained_on_fails_its_region_alone(here: Path) -> None:
    rows = "".join(f"{n * 7 % 50},{'yes' if n % 3 else 'no'}\n" for n in range(200))
    put_data(here, FIRST, A="amount,churned\n" + rows, B="amount,other\n" + rows)
    for text in (here / "data").glob("*/*.txt"):
        text.rename(text.with_suffix(".csv"))
    days = Days(write_study(here, **TABULAR), clock=lambda: datetime(2026, 11, 20, 12, tzinfo=UTC))
    next(days._work.steps(days._first_attempt(FIRST)))
    assert list(Run(days.folder.run(str(FIRST))).study.region_table) == ["A"]
    (failed,) = days.journal.outcomes()
    assert (failed.region, failed.ending) == ("B", Ending.FAILED)
    assert "there is no column 'churned'" in failed.why
    assert str(FIRST) in failed.why


@pytest.mark.thorough
def test_a_day_that_is_stopped_and_resumed_ends_as_its_run_does(
    here: Path, wait_for: Callable[..., None]
) -> None:
    opened = here / "gate"
    opened.mkdir()
    put_data(here, FIRST, A="1")
    file = write_study(
        here,
        regions=["A"],
        search_space={"x": {"type": "float", "low": 0.0, "high": 1.0}, "gate": str(opened)},
    )
    days, place = Days(file), here / "runs" / "demo" / str(FIRST)
    with ThreadPoolExecutor(1) as aside:
        day = aside.submit(days.run, FIRST)
        wait_for(lambda: place.exists() and Run(place).status().regions[0].running)
        Run(place).stop()
        day.result(120)
    assert endings(days, FIRST) == {"A": Ending.FAILED}
    for node in ("A.l1.t01", "A.best"):
        (opened / node).touch()
    done = CliRunner().invoke(main, ["resume", str(place), "--no-watch"])
    assert f"trialfleet daily run {file} --date {FIRST}" in done.output
    assert outcomes_now(days.journal) == {}, "it is open again"
    days.run(FIRST)
    assert [one.ending for one in days.journal.outcomes()] == [Ending.FAILED, Ending.PUBLISHED]
    assert not list((here / "runs" / "demo").glob(f"{FIRST}-*"))


@pytest.mark.thorough
def test_without_systemd_htcondor_starts_the_days(
    here: Path, wait_for: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Units, "can_be_used", lambda _: False)  # of a user with a systemd
    soon = datetime.now(UTC) + timedelta(minutes=1)
    daily = {"at": f"{soon:%H:%M}", "zone": "UTC"}
    file = write_study(here, data=[], daily=daily)
    messages: list[str] = []
    install(file, messages.append)
    install(file, messages.append)  # twice is once
    assert messages.count(messages[0]) == 2
    up = connection.start_command()
    assert messages[1] == f"the job starts it only while HTCondor is up: after a reboot, {up}"
    assert up.startswith("TRIALFLEET_POOL=/")  # the tests' pool is not this user's
    folder = DailyFolder.for_study("demo")
    (ad,) = schedd.query(f'TrialfleetDaily == "{folder.root}"', ["CronMinute", "DeferralTime"])
    assert ad["CronMinute"] == str(soon.minute)
    assert find_schedule("demo", folder)[0]

    days = Days(file)
    wait_for(lambda: len(days.journal.outcomes()) == 2, 300)
    assert set(endings(days, days.journal.outcomes()[0].date).values()) == {Ending.PUBLISHED}
    wait_for(lambda: [a.ended for a in days.journal.attempts()] != [None])
    remove(file, messages.append)
    assert find_schedule("demo", folder) == (None, "")
    assert not folder.start.exists()


@pytest.mark.thorough
def test_status_names_the_schedules_job_that_is_held_or_removed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Units, "can_be_used", lambda _: False)
    file = write_study(here, data=[])
    install(file, lambda _: None)
    constraint = f'TrialfleetDaily == "{DailyFolder.for_study("demo").root}"'
    (ad,) = schedd.query(constraint, ["ClusterId"])
    schedd.apply_action("Hold", constraint, "by hand")
    held = daily_status(file)
    assert f"HTCondor's job {ad['ClusterId']}.0, which starts it, is on hold (by hand" in held
    assert f": condor_release {ad['ClusterId']}.0" in held
    assert "started by" not in held
    schedd.apply_action("Remove", constraint, "by hand")
    assert "no schedule is installed: no day will start automatically" in daily_status(file)


def daily_status(file: Path) -> str:
    """Return the output of `trialfleet daily status`, on one line."""
    return " ".join(CliRunner().invoke(main, ["daily", "status", str(file)]).output.split())


@pytest.mark.thorough
def test_a_region_whose_data_is_too_large_for_each_slot_does_not_keep_others_from_their_models(
    here: Path, wait_for: Callable[..., None]
) -> None:
    put_data(here, SECOND, A="1" * 9_000_000, B="2")
    small = {"memory": "100MB", "disk": "50MB", "requirements": "MY.TransferInputSizeMB < 5"}
    days, place = Days(write_study(here, resources=small)), here / "runs" / "demo" / str(SECOND)
    with ThreadPoolExecutor(1) as aside:
        day = aside.submit(days.run, SECOND)
        wait_for(lambda: day.done() or endings(days, SECOND))
        assert endings(days, SECOND) == {"B": Ending.PUBLISHED}
        Run(place).stop()
        day.result(300)


@pytest.mark.thorough
def test_trials_that_wait_for_a_slot_at_the_deadline_do_not_begin(
    here: Path, wait_for: Callable[..., None]
) -> None:
    put_data(here, SECOND, A="1")
    opened = here / "gate"
    opened.mkdir()
    space = {"x": {"type": "float", "low": 0.0, "high": 1.0}, "gate": str(opened)}
    file = write_study(
        here,
        regions=["A"],
        search_space=space,
        budget={
            "trials": CPUS + 3,
            "lanes": CPUS + 3,
            "startup_trials": CPUS + 3,
            "trials_per_job": 1,
        },
        daily={"at": "02:30", "zone": "UTC", "deadline": "1m"},
    )
    days, place = Days(file), here / "runs" / "demo" / str(SECOND)

    def states() -> Counter[str]:
        return (
            Counter(trial.state for trial in Run(place).trials()) if place.exists() else Counter()
        )

    with ThreadPoolExecutor(1) as aside:
        day = aside.submit(days.run, SECOND)
        wait_for(lambda: states() == {"running": CPUS, "pruned": 3})
        for node in ("A.best", *(f"A.l{lane}.t01" for lane in range(1, CPUS + 4))):
            (opened / node).touch()
        assert day.result(300) == [SECOND]
    assert states() == {"complete": CPUS, "pruned": 3}
    assert endings(days, SECOND) == {"A": Ending.PUBLISHED}
    errors = [trial.error for trial in Run(place).trials() if trial.state == "pruned"]
    assert all("the day's deadline" in str(error) for error in errors)
