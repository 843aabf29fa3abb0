"""Days without a pool: missing and unchanged data, and days that wait for one another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.conftest import MakeRun
from tests.unit.study.study_texts import MINIMAL, write
from tests.unit.terminal import printed
from trialfleet import wall_clock
from trialfleet.errors import InputError, StudyError
from trialfleet.files import write_json
from trialfleet.infra.pool import connection
from trialfleet.infra.pool.embedded import FOLDER_VARIABLE
from trialfleet.workflows.checksums import Checksums
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.daily import day_attempt as day_module
from trialfleet.workflows.control.daily import day_lock
from trialfleet.workflows.control.daily import day_loop as days_module
from trialfleet.workflows.control.daily.day_attempt import _OutcomeReporter
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.daily.pool_watch import PoolWatch
from trialfleet.workflows.control.daily.region_outcomes import RunsEndings
from trialfleet.workflows.control.daily.staleness import age_points, stalest_first
from trialfleet.workflows.control.daily.systemd_timer import Units
from trialfleet.workflows.control.daily.unchanged_regions import (
    data_fingerprint,
    settings_fingerprint,
)
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.models.verdict import ComparedModel, Verdict
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.gate_decision import PassedModel
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.terminal.days_table import (
    DaysOverview,
    newest_days,
    newest_table,
    reasons_table,
)

pytestmark = pytest.mark.slow


DAY = date(2026, 11, 22)
BEFORE = DAY - timedelta(days=1)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
TEXT = MINIMAL + "data: 'data/{region}/{date}.txt'\ndaily: {at: '02:30', zone: UTC, deadline: 1h}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(day_lock, "POLL_SECONDS", 0.01)
    (tmp_path / "go.sh").write_text("exit 0\n")
    return tmp_path


def put(here: Path, day: date, **contents: str) -> None:
    for region, content in contents.items():
        (here / "data" / region).mkdir(parents=True, exist_ok=True)
        (here / "data" / region / f"{day}.txt").write_text(content)


def outcomes_of(days: Days, day: date) -> dict[str, tuple[Ending, str]]:
    return {one.region: (one.ending, one.why) for one in days.journal.outcomes(day, day)}


def test_a_day_without_any_data_ends_without_a_run(here: Path) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON)
    assert days.run() == [DAY]
    assert outcomes_of(days, DAY) == {
        region: (Ending.FAILED, f"data of {DAY} isn't there: {here}/data/{region}/{DAY}.txt")
        for region in ("A", "NO")
    }
    assert not (here / "runs/demo" / str(DAY)).exists()
    assert [attempt.ended for attempt in days.journal.attempts()] == [NOON]
    [shown] = newest_days(days.journal, 14)
    assert shown.runs == (), "no run was planned"


@pytest.mark.parametrize("missed", ["none", "latest"])
def test_a_missed_day_is_not_begun_on_the_next_date_unless_the_study_wants_it(
    here: Path, missed: str
) -> None:
    """In winter, HTCondor's job for 02:30 in Oslo also starts at 00:30 UTC, for the summer."""
    text = TEXT.replace("zone: UTC", f"zone: Europe/Oslo, missed: {missed}")
    night = datetime(2026, 11, 22, 0, 30, tzinfo=UTC)
    said: list[str] = []
    assert Days(write(here, text), clock=lambda: night, say=said.append).run() == (
        [] if missed == "none" else [BEFORE]
    )
    assert ("2026-11-21 was missed; the next day begins 2026-11-22 02:30 CET" in said) == (
        missed == "none"
    )
    start = datetime(2026, 11, 22, 1, 30, tzinfo=UTC)
    assert Days(here / "study.yaml", clock=lambda: start).run() == [DAY]


def test_a_day_that_has_begun_or_starts_late_continues_on_the_next_date(here: Path) -> None:
    text = TEXT.replace("'02:30'", "'23:30', missed: none")
    late = datetime(2026, 11, 23, 0, 20, tzinfo=UTC)
    assert Days(write(here, text), clock=lambda: late).run() == [DAY]
    later = late + timedelta(hours=20)
    assert Days(here / "study.yaml", clock=lambda: later).run() == [DAY]


def trained(here: Path, days: Days, day: date) -> None:
    """Record that a day trained a model of each region, as its run would."""
    study = load_study(here / "study.yaml", day)
    checksums = Checksums(days.folder.checksums)
    one = Attempt(
        date=day, attempt=1, run=str(day), regions=("A", "NO"), started=NOON, deadline=None
    )
    days.journal.end(days.journal.begin(one), NOON)
    for region in study.region_table:
        publish(here, region, str(day), NOON - timedelta(days=1))
        found = Outcome(
            date=day,
            region=region,
            attempt=1,
            ending=Ending.PUBLISHED,
            run=str(day),
            fingerprint=data_fingerprint(study, region, checksums),
            settings=settings_fingerprint(study, region),
        )
        days.journal.record([found], NOON)


def publish(here: Path, region: str, run: str, as_of: datetime) -> None:
    models_folder = here / "models" / "demo" / region
    (models_folder / run).mkdir(parents=True)
    write_json(models_folder / run / "provenance.json", {"run": run, "created": as_of.isoformat()})
    (models_folder / "latest").symlink_to(run)


def test_a_day_on_which_nothing_is_new_ends_without_a_run(here: Path) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON)
    for day in (BEFORE, DAY):
        put(here, day, A="1", NO="2")
    trained(here, days, BEFORE)
    days.run()
    assert outcomes_of(days, DAY) == dict.fromkeys(["A", "NO"], (Ending.UNCHANGED, ""))
    assert not (here / "runs/demo" / str(DAY)).exists()


def test_an_earlier_day_of_files_without_a_date_trains_only_what_has_changed(here: Path) -> None:
    days = Days(write(here, TEXT.replace("{date}.txt", "rows.txt")), clock=lambda: NOON)
    for region in ("A", "NO"):
        (here / "data" / region).mkdir(parents=True)
        (here / "data" / region / "rows.txt").write_text(region)
    trained(here, days, DAY)
    days.run(BEFORE)
    assert outcomes_of(days, BEFORE) == dict.fromkeys(["A", "NO"], (Ending.UNCHANGED, ""))
    (here / "data/A/rows.txt").write_text("new")
    attempt = days._first_attempt(BEFORE - timedelta(days=1))
    study = days._work._study_to_train(attempt, ["A", "NO"])
    assert study is not None
    assert list(study.region_table) == ["A"]


@pytest.mark.parametrize(
    "change",
    [
        lambda here: put(here, DAY, A="new"),
        lambda here: (here / "go.sh").write_text("exit 1\n"),
        lambda here: (here / "models/demo/A/latest").unlink(),
        lambda here: write(here, TEXT.replace("epochs: 3", "epochs: 4")),
        lambda here: write(here, TEXT.replace("zone: UTC", "zone: UTC, unchanged: train")),
    ],
    ids=["data", "trainer", "no model", "settings", "by the study's wish"],
)
def test_a_changed_region_is_trained(here: Path, change: Callable[[Path], object]) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON)
    for day in (BEFORE, DAY):
        put(here, day, A="1", NO="2")
    trained(here, days, BEFORE)
    change(here)
    attempt = days._first_attempt(DAY)
    study = Days(here / "study.yaml", clock=lambda: NOON)._work._study_to_train(
        attempt, ["A", "NO"]
    )
    assert study is not None
    assert "A" in study.region_table


def make_pipe(data: Path) -> Path:
    os.mkfifo(data / "pipe")
    return data / "pipe"


def make_link_to_folder(data: Path) -> Path:
    (data / "again").symlink_to(data)
    return data / "again"


def make_name_in_latin_1(data: Path) -> Path:
    file = data / os.fsdecode("für".encode("latin-1"))
    file.touch()
    return file


def make_unreadable_file(data: Path) -> Path:
    (data / "secret").touch(mode=0)
    return data / "secret"


def make_unreadable_folder(data: Path) -> Path:
    (data / "secret").mkdir(mode=0)
    return data / "secret"


# `daily run` as an account that can't read everything, even if the tests run as root
AS_USER = [
    *(["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []),
    *(sys.executable, "-m", "trialfleet", "daily", "run"),
]


@pytest.mark.parametrize(
    "spoil",
    [
        make_pipe,
        make_link_to_folder,
        make_name_in_latin_1,
        make_unreadable_file,
        make_unreadable_folder,
    ],
)
def test_a_region_whose_data_cant_be_used_fails_alone_and_is_reported(
    here: Path, spoil: Callable[[Path], Path]
) -> None:
    heard = here / "heard"
    command = ["sh", "-c", f"cat >> {heard}; echo >> {heard}"]
    file = write(here, f"{TEXT}notify: {json.dumps([{'command': command}])}\n")
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    before = yesterday - timedelta(days=1)
    put(here, before, A="1", NO="2")
    days = Days(file, say=lambda _: None)
    trained(here, days, before)
    put(here, yesterday, A="1")
    data = here / "data/NO" / f"{yesterday}.txt"
    data.mkdir()
    bad = spoil(data)
    asked = [*AS_USER, str(file), "--date", str(yesterday)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (1, "")
    found = outcomes_of(days, yesterday)
    assert found["A"] == (Ending.UNCHANGED, "")
    ending, why = found["NO"]
    assert ending is Ending.FAILED
    assert why.startswith(f"data of {yesterday} can't be used: {str(bad)!r} ")
    assert all(attempt.ended for attempt in days.journal.attempts(yesterday))
    events = [json.loads(line) for line in heard.read_text().splitlines()]
    [failed] = [event for event in events if event["event"] == "region-failed"]
    assert (failed["region"], failed["data"]["why"]) == ("NO", why)
    bad.rmdir() if bad.is_dir() and not bad.is_symlink() else bad.unlink()
    assert days._newly_arrived(yesterday) == ["NO"]


def test_the_other_regions_of_a_region_whose_data_cant_be_used_are_trained(here: Path) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON)
    put(here, DAY, A="1")
    (here / "data/NO").mkdir()
    os.mkfifo(here / "data/NO" / f"{DAY}.txt")
    attempt = days._first_attempt(DAY)
    assert attempt.regions == ("A", "NO")
    study = days._work._study_to_train(attempt, ["A", "NO"])
    assert study is not None
    assert list(study.region_table) == ["A"]
    assert days._newly_arrived(DAY) == [], "nothing has changed"


def test_the_other_regions_of_a_region_with_two_files_of_one_name_are_planned(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_module, "connect", lambda: None)  # there is no pool
    text = TEXT.replace("data: 'data/{region}/{date}.txt'\n", "").replace(
        "regions: [A, NO]",
        "regions: {A: {data: data/A/x}, NO: {data: [data/A/x, data/NO/x]}, go: {data: data/go.sh}}",
    )
    for region in ("A", "NO"):
        (here / "data" / region).mkdir(parents=True)
        (here / "data" / region / "x").touch()
    (here / "data/go.sh").touch()
    days = Days(write(here, text), clock=lambda: NOON, say=lambda _: None)
    attempt = days._first_attempt(DAY)
    days._work._plan(attempt, ["A", "NO", "go"])
    whys = {region: why for region, (_, why) in outcomes_of(days, DAY).items()}
    one_folder = "all of them are copied into one folder, so rename all but one"
    assert whys == {
        "NO": f"2 files of a trial are called 'x'; {one_folder}",
        "go": f"2 files of a trial are called 'go.sh'; {one_folder}",
    }
    days._work._plan(attempt, days._work.remaining_regions(attempt))
    planned = load_frozen(RunFolder(days.folder.run(attempt.run)).study).study
    assert [*planned.region_table] == ["A"]


def test_a_file_of_a_glob_that_cant_be_used_fails_alone(here: Path) -> None:
    text = TEXT.replace("regions: [A, NO]", "regions: {glob: 'data/*.txt'}")
    text = text.replace("data: 'data/{region}/{date}.txt'\n", "")
    days = Days(write(here, text), clock=lambda: NOON)
    (here / "data").mkdir()
    for name in ("A", os.fsdecode(b"f\xfcr")):
        (here / "data" / f"{name}.txt").touch()
    (here / "data/loop.txt").symlink_to("loop.txt")
    attempt = days._first_attempt(DAY)
    study = days._work._study_to_train(attempt, [*attempt.regions])
    assert study is not None
    assert list(study.region_table) == ["A"]
    whys = {region: why for region, (_, why) in outcomes_of(days, DAY).items()}
    name, file = r"'f\udcfcr'", rf"{here}/data/f\udcfcr.txt"
    assert whys == {
        name: f"data of {DAY} can't be used: '{file}': region name {name} has a character that "
        r"does not print: '\udcfc'",
        "loop": f"data of {DAY} isn't there: {here}/data/loop.txt",
    }


def test_settings_that_do_not_affect_a_model_keep_its_fingerprint(here: Path) -> None:
    put(here, DAY, A="1", NO="2")
    first = settings_fingerprint(load_study(write(here, TEXT), DAY), "A")
    text = TEXT.replace("1h", "2h") + "retries: 7\nparallel_regions: 3\n"
    assert settings_fingerprint(load_study(write(here, text), DAY), "A") == first
    gated = [TEXT + f"gate: {{approve: {each}}}\n" for each in ("true", "false")]
    approved, not_so = (
        settings_fingerprint(load_study(write(here, each), DAY), "A") for each in gated
    )
    assert approved == not_so
    put(here, BEFORE, A="1", NO="2")
    assert settings_fingerprint(load_study(write(here, TEXT), BEFORE), "A") == first


@pytest.fixture
def busy(here: Path) -> Iterator[Days]:
    """The day before is worked on by somebody else."""
    days = Days(write(here, TEXT), clock=ticking_clock(), say=lambda _: None)
    with day_lock.day_lock(days.folder, BEFORE, lambda _: True) as ours:
        assert ours
        yield days


def ticking_clock() -> Callable[[], datetime]:
    """Return a clock that is ten minutes later at each look."""
    looks = count()
    return lambda: NOON + timedelta(minutes=10) * next(looks)


def test_a_day_waits_for_another_until_its_own_deadline(busy: Days) -> None:
    busy.run(DAY)
    why = f"the day's deadline was over before the work on another day, {BEFORE}, ended"
    assert outcomes_of(busy, DAY) == dict.fromkeys(["A", "NO"], (Ending.FAILED, why))
    assert all(attempt.ended for attempt in busy.journal.attempts())


@pytest.mark.parametrize("starts", ["run", "backfill"])
def test_a_day_that_waits_for_another_says_so_and_that_htcondor_is_down(
    busy: Days, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, starts: str
) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", os.devnull)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "no pool"))
    monkeypatch.setattr(connection, "machines_own", lambda: None)
    messages: list[str] = []
    second = Days(busy._file, clock=lambda: NOON, say=messages.append)

    class Enough(Exception):  # noqa: N818 - no error
        pass

    naps = count()

    def sleep(_: float) -> None:
        if len(messages) >= 2 or next(naps) > 5:
            raise Enough

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(Enough):
        second.run(DAY) if starts == "run" else second.backfill(DAY, DAY, only_missing=True)
    assert len(messages) == 2
    assert messages[0] == f"waits until the day {BEFORE} has ended"
    assert messages[1].startswith("the day waits for HTCondor (the pool in ")
    assert messages[1].endswith("if it is down: trialfleet pool up")


def test_a_day_that_begins_after_its_deadline_has_failed(here: Path) -> None:
    put(here, DAY, A="1", NO="2")
    days = Days(write(here, TEXT), clock=lambda: NOON)
    days._first_attempt(DAY)
    later = Days(here / "study.yaml", clock=lambda: NOON + timedelta(hours=1))
    later.run(DAY)
    why = "the day's deadline was over before the region began"
    assert outcomes_of(days, DAY) == dict.fromkeys(["A", "NO"], (Ending.FAILED, why))


def test_days_that_were_begun_are_finished_before_another(here: Path) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON)
    days._first_attempt(BEFORE)
    days.run(DAY)
    assert [bool(attempt.ended) for attempt in days.journal.attempts()] == [True, True]


def test_backfill_starts_only_missing_days(here: Path) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON, say=lambda _: None)
    put(here, BEFORE, A="1", NO="2")
    trained(here, days, BEFORE)
    days.run(DAY)
    first = DAY - timedelta(days=3)
    with pytest.raises(InputError, match=r"succeeded already \(2 in all.*--only missing"):
        days.backfill(first, DAY, only_missing=False)
    assert days.backfill(first, DAY, only_missing=True) == [
        first, first + timedelta(days=1), DAY
    ]  # fmt: skip
    assert [(a.date, a.attempt) for a in days.journal.attempts()][-2:] == [
        (BEFORE, 1),
        (DAY, 1),  # its data is missing still
    ]
    for wrong in [(DAY, BEFORE), (DAY, DAY + timedelta(days=1))]:
        with pytest.raises(InputError):
            days.backfill(*wrong, only_missing=True)


def test_a_backfill_of_still_missing_data_begins_no_new_attempt(here: Path) -> None:
    messages: list[str] = []
    days = Days(write(here, TEXT), clock=lambda: NOON, say=messages.append)
    days.run(DAY)
    before = outcomes_of(days, DAY)
    assert days.backfill(DAY, DAY, only_missing=True) == [DAY]  # so it is shown, and has failed
    assert [attempt.attempt for attempt in days.journal.attempts()] == [1]
    assert outcomes_of(days, DAY) == before
    absent = f"data of {DAY} isn't there: {here}/data/A/{DAY}.txt; 1 more without data"
    assert messages[-1] == f"{DAY} (1 of 1 days): nothing is started: {absent}"
    assert len(days._absence_reasons(DAY, ["A", "NO"])) == 2
    put(here, DAY, A="1")
    assert days._absence_reasons(DAY, ["A", "NO"]) == []


def test_a_backfill_of_many_days_requires_a_confirmation(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON)
    first = date(1000, 1, 1)
    with pytest.raises(InputError, match=r"are 375,0\d\d days, more than .*--yes"):
        days.backfill(first, DAY, only_missing=True)
    assert days.journal.attempts() == []
    days.backfill(first, first, only_missing=True)
    monkeypatch.setattr(days_module, "MANY_DAYS", 5)
    before = DAY - timedelta(days=5)
    with pytest.raises(InputError, match="are 6 days, more than 5"):
        days.backfill(before, DAY, only_missing=True)
    assert len(days.backfill(before, DAY, only_missing=True, however_many=True)) == 6


def test_a_backfill_says_how_far_it_is(here: Path) -> None:
    messages: list[str] = []
    days = Days(write(here, TEXT), clock=lambda: NOON, say=messages.append)
    days.backfill(BEFORE, DAY, only_missing=True)
    assert messages == [
        f"{BEFORE} (1 of 2 days): 2 regions to backfill",
        f"{DAY} (2 of 2 days): 2 regions to backfill",
    ]


def test_a_day_that_has_ended_waits_for_no_other(busy: Days) -> None:
    attempt = busy._first_attempt(DAY)
    busy.journal.end(attempt, NOON)
    messages: list[str] = []
    busy._say = messages.append
    assert busy.run(DAY) == [DAY]
    assert messages == []
    assert outcomes_of(busy, DAY) == {}, "nothing is recorded of it any more"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("2026-02-30", "the day '2026-02-30' does not exist"),
        ("tomorrow", "'tomorrow' is not a date"),
        ("21.11.2026", "'21.11.2026' is not a date"),
        ("20261121", "'20261121' is not a date"),
    ],
)
def test_an_invalid_date_is_refused_with_an_example(given: str, why: str) -> None:
    done = CliRunner().invoke(main, ["daily", "run", "study.yaml", "--date", given])
    assert done.exit_code == 2
    example = r"; write DATE like \d{4}-\d\d-\d\d;"  # that of the day the tests run on
    assert re.search(re.escape(f"'--date': {why}") + example, done.stderr)


def test_the_schedule_of_a_study_without_daily_is_shown_and_removed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(here, MINIMAL)

    def asked(*words: str) -> Result:
        return CliRunner().invoke(main, ["daily", *words, str(file)])

    assert asked("status").exit_code == 2, "it never had a day"
    Days(write(here, TEXT), clock=lambda: NOON, say=lambda _: None).run()
    write(here, MINIMAL)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    timer = Units.for_study("demo", DailyFolder.for_study("demo"), system=False).timer
    timer.parent.mkdir(parents=True)
    timer.touch()
    shown = asked("status")
    assert shown.exit_code == 0, shown.output
    assert f"{timer} is still installed" in shown.output.replace("\n", "")
    assert json.loads(asked("status", "--json").output)["next_start"] is None
    (here / "bin").mkdir()
    (here / "bin/systemctl").write_text("#!/bin/sh\nexit 0\n")
    (here / "bin/systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}/bin{os.pathsep}{os.environ['PATH']}")
    removed = asked("remove")
    assert removed.exit_code == 0, removed.output
    assert not timer.exists()


def test_status_says_that_no_schedule_is_installed(here: Path) -> None:
    write(here, TEXT)
    shown = CliRunner().invoke(main, ["daily", "status", "study.yaml"])
    assert "no schedule is installed: no day will start automatically" in shown.output
    assert "next day starts" not in shown.output
    assert shown.output.endswith("trialfleet daily install study.yaml\n")


ENABLE = "systemctl --user enable --now {name}"


@pytest.mark.parametrize(
    ("answer", "is_due", "says"),
    [
        ("ActiveState=active\nUnitFileState=enabled", True, "started by {timer}"),
        (
            "ActiveState=inactive\nUnitFileState=disabled",
            False,
            f"{{timer}}, which starts it, is inactive: {ENABLE}",
        ),
        (
            "ActiveState=inactive\nUnitFileState=enabled",
            False,
            f"{{timer}}, which starts it, is inactive: {ENABLE}",
        ),
        (
            "ActiveState=active\nUnitFileState=disabled",
            False,
            f"{{timer}}, which starts it, is disabled, so no day starts after a reboot: {ENABLE}",
        ),
        (None, True, "started by {timer}"),  # no systemd runs here
    ],
)
def test_status_says_whether_systemd_starts_the_next_day(
    here: Path, monkeypatch: pytest.MonkeyPatch, *, answer: str | None, is_due: bool, says: str
) -> None:
    write(here, TEXT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    monkeypatch.setenv("COLUMNS", "1000")
    timer = Units.for_study("demo", DailyFolder.for_study("demo"), system=False).timer
    timer.parent.mkdir(parents=True)
    timer.touch()
    (here / "bin").mkdir()
    script = "exit 1" if answer is None else f"[ $1 = --user ] && echo '{answer}'"
    (here / "bin/systemctl").write_text(f"#!/bin/sh\n{script}\n")
    (here / "bin/systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}/bin{os.pathsep}{os.environ['PATH']}")
    lines = CliRunner().invoke(main, ["daily", "status", "study.yaml"]).output.splitlines()
    due, last = lines[-2:]
    assert due.startswith("next day starts" if is_due else "next day is due")
    assert last == says.format(timer=timer, name=timer.name)
    found = json.loads(CliRunner().invoke(main, ["daily", "status", "study.yaml", "--json"]).output)
    assert found["clock_fault"] == ("" if is_due else last)


def test_status_says_that_an_installed_timer_has_not_begun_the_due_day(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, TEXT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    monkeypatch.setattr(wall_clock, "real_time", lambda: NOON)
    folder = DailyFolder.for_study("demo")
    units = Units.for_study("demo", folder, system=False)
    for file in (units.timer, folder.start):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def fault(installed: datetime) -> str:
        os.utime(folder.start, (installed.timestamp(), installed.timestamp()))
        done = CliRunner().invoke(main, ["daily", "status", "study.yaml", "--json"])
        return str(json.loads(done.output)["clock_fault"])

    assert fault(NOON - timedelta(hours=1)) == ""  # after the day was due
    unbegun = f"the day {DAY} was due at 02:30 UTC, but has not begun"
    see = f": see journalctl --user -u {units.name}.service"
    assert fault(NOON - timedelta(days=1)) == unbegun + see
    journal = Journal(folder.journal)
    one = Attempt(date=BEFORE, attempt=1, run="r", regions=("A",), started=NOON, deadline=None)
    journal.begin(one)
    assert fault(NOON - timedelta(days=1)) == f"{unbegun} ({BEFORE} has not ended){see}"
    journal.begin(replace(one, date=DAY))
    assert fault(NOON - timedelta(days=1)) == ""


def overview(journal: Journal, most: int) -> DaysOverview:
    shown = newest_days(journal, most)
    newest = shown[0].outcomes
    return DaysOverview(study="demo", days=shown, newest=newest, next_start=NOON, clock=None)


def test_status_has_the_reasons_of_all_days_that_it_shows(here: Path) -> None:
    days = Days(write(here, TEXT), clock=lambda: NOON, say=lambda _: None)
    put(here, BEFORE, A="1", NO="2")
    put(here, DAY, A="1", NO="2")
    days.run(BEFORE - timedelta(days=1))
    trained(here, days, BEFORE)
    days.run(DAY)
    shown = overview(days.journal, 7)
    newest, before, first = shown.to_json()["days"]
    assert [one["why"] for one in first["outcomes"]] == [
        f"data of {BEFORE - timedelta(days=1)} isn't there: {here}/data/{region}/2026-11-20.txt"
        for region in ("A", "NO")
    ]
    assert [one["ending"] for one in before["outcomes"]] == ["published", "published"]
    table = reasons_table(shown)
    assert table is not None
    text = printed(table, 250)
    assert f"data of {BEFORE - timedelta(days=1)} isn't there" in text
    assert "published" not in text, "it needs no reason"
    newest_ones = printed(newest_table(shown), 250)
    assert "its data and settings have not changed since its last model" in newest_ones
    assert newest["outcomes"][0]["fingerprint"][:12] not in newest_ones
    assert reasons_table(overview(days.journal, 2)) is None


def test_days_refuse_a_study_without_daily(here: Path) -> None:
    with pytest.raises(StudyError, match=r"daily: \{at:"):
        Days(write(here, MINIMAL))


# -- stalest first ---------------------------------------------------------------------------------


def test_regions_with_older_models_have_higher_priority(here: Path) -> None:
    text = MINIMAL.replace("[A, NO]", "{A: , B: , C: {priority: 30}, D: }")
    study = load_study(write(here, text))
    for region, hours in (("A", 50), ("B", 26), ("C", 10)):
        publish(here, region, "r1", NOON - timedelta(hours=hours))
    planned = stalest_first(study, NOON)
    graph = build_graph(planned)
    assert {region.name: region.priority for region in graph.regions} == {
        "A": 50,
        "B": 26,
        "C": 40,
        "D": 74,
    }
    assert isinstance(planned, Study)


def oldest(order: Callable[[dict[str, int]], list[str]], days: int) -> int:
    """Return the age in days of the oldest model after days on which half of the regions train."""
    born = dict.fromkeys([f"R{n:02}" for n in range(41)], 0)
    worst = 0
    for day in range(1, days + 1):
        ages = {region: day - birth for region, birth in born.items()}
        born |= dict.fromkeys(order(ages)[:21], day)
        worst = max(worst, *(day - birth for birth in born.values()))
    return worst


def test_with_half_of_the_capacity_no_region_starves() -> None:
    def stalest(ages: dict[str, int]) -> list[str]:
        points = age_points({region: days * 86_400.0 for region, days in ages.items()})
        return sorted(points, key=lambda region: -points[region])

    assert oldest(stalest, 14) <= oldest(list, 14) * 2 / 3


# -- how a run's regions end -----------------------------------------------------------------------


def test_the_outcome_of_a_region_follows_from_its_gate_latest_and_stop_files(
    make_run: MakeRun,
) -> None:
    run = make_run(regions=["new", "gated", "passed", "late", "failed", "cut"])
    files = RunFolder(run.folder)
    for region, note in {"new": None, "gated": None, "passed": None, "late": "b is newer"}.items():
        content = {"path": str(run.folder / "model"), "not_latest": note}
        write_json(files.region(region).published, content)
    kept = Verdict(
        verdict="kept",
        why="worse by 3%",
        metric="loss",
        champion=ComparedModel(run="r0"),
        challenger=ComparedModel(run="r1"),
        baseline=None,
        interval=None,
    )
    write_json(files.region("gated").verdict, kept.to_json())
    passed = replace(kept, verdict="promoted", why="better")
    write_json(files.region("passed").verdict, passed.to_json())
    write_json(files.region("failed").stopped, {"reason": "4 trials failed"})
    one = Attempt(
        date=DAY, attempt=1, run="r1", regions=tuple(run.study.region_table), started=NOON,
        deadline=None,
    )  # fmt: skip
    endings = RunsEndings(one, files, load_frozen(files.study))
    found = {o.region: (o.ending, o.why) for o in endings.all_outcomes(run.status())}
    assert found.pop("cut")[0] is Ending.FAILED
    assert found == {
        "new": (Ending.PUBLISHED, ""),
        "passed": (Ending.PUBLISHED, ""),
        "gated": (Ending.KEPT, "worse by 3%"),
        "late": (Ending.KEPT, "b is newer"),
        "failed": (Ending.FAILED, "4 trials failed"),
    }
    assert len(endings.published_outcomes(run.status())) == 4
    assert {o.ending for o in endings.failed_outcomes("no slot")} == {Ending.FAILED}


def test_each_region_is_reported_once_when_it_has_ended(make_run: MakeRun) -> None:
    status = make_run().status()
    reached = replace(status, regions=(replace(status.regions[0], best=0.123456),))
    messages: list[str] = []
    reporter = _OutcomeReporter(messages.append)
    one = Outcome(date=DAY, region="A", attempt=1, ending=Ending.PUBLISHED)
    for outcomes in ([], [one], [one, replace(one, region="B", ending=Ending.FAILED)]):
        reporter.report(outcomes, reached)
    assert messages == ["A: published, best loss 0.12346", "B: failed"]


def test_the_outcome_of_a_region_includes_the_reason_of_the_gate(make_run: MakeRun) -> None:
    status = make_run().status()
    region = replace(
        status.regions[0], gate=PassedModel(why="loss 0.3, champion 0.4", is_worse=False)
    )
    messages: list[str] = []
    one = Outcome(date=DAY, region="A", attempt=1, ending=Ending.PUBLISHED)
    kept = replace(one, region="B", ending=Ending.KEPT, why="loss 0.5, champion 0.4")
    _OutcomeReporter(messages.append).report([one, kept], replace(status, regions=(region,)))
    assert messages == [
        "A: published; the gate let it pass: loss 0.3, champion 0.4",
        "B: kept; loss 0.5, champion 0.4",
    ]


def test_a_day_reports_once_that_it_waits_for_htcondor_and_that_it_continues(
    make_run: MakeRun,
) -> None:
    status = make_run().status()
    messages: list[str] = []
    waits = PoolWatch(messages.append)
    away = replace(status, state=RunState.UNKNOWN, notice="no HTCondor")
    for each in (status, away, away, status, status):
        waits.update(each)
    assert messages == [
        "the day waits for HTCondor (no HTCondor); if it is down: trialfleet pool up",
        "HTCondor answers again: the day continues",
    ]


def test_status_names_the_folder_in_which_no_day_has_begun(here: Path) -> None:
    done = CliRunner().invoke(main, ["daily", "status", str(write(here, TEXT))])
    assert f"no day of demo has started in {here}/runs/demo" in done.output


def test_a_region_that_a_person_stopped_is_reported_as_stopped(make_run: MakeRun) -> None:
    run = make_run()
    files = RunFolder(run.folder)
    status = run.status()
    region = replace(status.regions[0], best=0.5, stage=Stage.STOPPED)
    status = replace(status, state=RunState.STOPPED, regions=(region,))
    one = Attempt(date=DAY, attempt=1, run="r1", regions=("A",), started=NOON, deadline=None)
    messages: list[str] = []
    outcomes = RunsEndings(one, files, load_frozen(files.study)).all_outcomes(status)
    _OutcomeReporter(messages.append).report(outcomes, status)
    assert messages == ["A: stopped before it had a model, best loss 0.5"]
    assert [o.why for o in outcomes] == ["its run r1 was stopped"]
