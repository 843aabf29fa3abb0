"""`daily:` of a study file, and `{date}` in its data."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner

from tests.unit.study.study_texts import MINIMAL, REGIONS, TRAINER, error_of, with_line, write
from trialfleet import plan
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import dump_frozen, load_frozen
from trialfleet.workflows.study.loading import load_day, load_study

DAY = date(2026, 11, 22)
DATED = MINIMAL + "data: 'data/{region}/{date}.npz'\n"


@pytest.fixture
def folder(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    (work / "go.sh").write_text("exit 0\n")
    return work


def put(folder: Path, day: date, *regions: str) -> None:
    for region in regions:
        place = folder / "data" / region / f"{day}.npz"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


@pytest.mark.parametrize(
    ("daily", "words"),
    [
        ("{}", ["daily.at: is missing. Time of day when a day's run starts."]),
        ("{at: noon}", ["daily.at", "from 0:00 to 23:59, such as 02:30", "'noon'"]),
        ("{at: '24:00'}", ["daily.at", "'24:00'"]),
        ("{at: 130}", ["daily.at", "must be a time of day"]),
        ("{at: 02:30, zone: Europe/Olso}", ["daily.zone", "did you mean 'Europe/Oslo'"]),
        ("{at: 02:30, zone: /etc/passwd}", ["daily.zone", "unknown time zone"]),
        ("{at: 02:30, zone: ../../x}", ["daily.zone", "unknown time zone"]),
        ('{at: 02:30, zone: "UTC\\nExecStart=x"}', ["daily.zone", "unknown time zone"]),
        ("{at: 02:30, deadline: 6}", ["daily.deadline", "6h, 90m or 1h30m"]),
        ("{at: 02:30, deadline: 0h}", ["daily.deadline", "longer than 0 minutes"]),
        ("{at: 02:30, missed: some}", ["daily.missed", "'latest', 'all' or 'none'"]),
        ("{at: 02:30, unchanged: no}", ["daily.unchanged", "'skip' or 'train'"]),
        ("{at: 02:30, takeover_after: 0m}", ["daily.takeover_after", "longer than 0 minutes"]),
        (
            "{at: 02:30, takeover_after: 10m}",
            [
                "daily.takeover_after",
                "requires storage: postgresql+psycopg://…, which both managers reach",
                "requires models in S3: publish: s3://BUCKET/PREFIX",
            ],
        ),
        (
            "{at: 02:30, wait_for_data: 3h}",
            [
                "daily.wait_for_data",
                "requires data; leave it out, or name the data that is awaited",
            ],
        ),
        ("{at: 02:30, when: x}", ["daily", "unknown key 'when'", "missed"]),
        (
            "02:30",
            [
                "daily",
                "must be a table; its keys: at, zone, deadline, wait_for_data, ready_file, missed",
            ],
        ),
    ],
)
def test_an_error_in_daily_is_reported_with_its_line_and_key(
    folder: Path, daily: str, words: list[str]
) -> None:
    message = error_of(folder, MINIMAL + f"daily: {daily}\n")
    for word in ["study.yaml:9: ", *words]:
        assert word in message


def test_a_day_on_which_only_regions_without_data_train_can_be_planned(folder: Path) -> None:
    regions = "regions: {A: , B: {data: 'data/{date}.csv'}}"
    text = with_line(REGIONS, regions) + "daily: {at: 02:30, wait_for_data: 3h}\n"
    day = load_day(write(folder, text), DAY)
    assert day.study is not None
    assert list(day.usable) == ["A"]
    planned = write_plan(day.study, run="r", out=folder / "r", day=RunsDay(date=DAY))
    assert list(load_frozen(planned.study).study.region_table) == ["A"]


TABULAR = with_line(TRAINER, "trainer: tabular") + "target: y\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("checks: {rows: stop}", ["checks.rows", "'warn', 'fail' or 'off'", "'stop'"]),
        ("checks: {labels: no}", ["checks.labels", "'warn', 'fail' or 'off'"]),
        ("checks: {rows: {fail: 3}}", ["checks.rows", "'warn', 'fail' or 'off'"]),
        ("checks: {row: fail}", ["checks", "unknown key 'row'", "did you mean 'rows'"]),
        ("checks: fail", ["checks: must be a table; its keys: rows, missing, new_categories"]),
        ("checks:", ["checks"]),
    ],
)
def test_an_error_in_checks_is_reported_with_its_key(
    folder: Path, text: str, words: list[str]
) -> None:
    message = error_of(folder, TABULAR + f"daily: {{at: 02:30}}\n{text}\n")
    for word in words:
        assert word in message


def test_checks_need_days_to_compare_and_a_table_to_read(folder: Path) -> None:
    assert "checks: requires a `daily:` table" in error_of(
        folder, TABULAR + "checks: {rows: fail}\n"
    )
    assert "checks: requires `trainer: tabular`" in error_of(
        folder, MINIMAL + "daily: {at: 02:30}\nchecks: {rows: fail}\n"
    )


def test_a_day_needs_models(folder: Path) -> None:
    message = error_of(folder, MINIMAL + "publish: none\ndaily: {at: 02:30}\n")
    assert "study.yaml:9: publish: `daily` requires published models" in message


def test_a_frozen_study_keeps_its_day(folder: Path) -> None:
    put(folder, DAY, "A", "NO")
    text = DATED + "daily: {at: 2:30, zone: UTC, deadline: 90m, missed: none}\n"
    study = load_study(write(folder, text), DAY)
    assert study.data_paths("A") == [f"{folder}/data/A/{DAY}.npz"]
    assert study.daily
    assert study.daily.deadline_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(
        2026, 1, 1, 1, 30, tzinfo=UTC
    )
    run = plan(study, run="r1", day=DAY)
    frozen = load_frozen(run.folder / "study.json")
    assert (frozen.day and frozen.day.date, frozen.study.daily) == (DAY, study.daily)
    assert dump_frozen(frozen) == (run.folder / "study.json").read_text()


def test_regions_without_data_of_the_day_are_set_apart(folder: Path) -> None:
    put(folder, DAY, "NO")
    found = load_day(write(folder, DATED), DAY)
    assert found.unusable == {"A": f"isn't there: {folder}/data/A/{DAY}.npz"}
    assert found.study
    assert list(found.study.region_table) == ["NO"]
    error = error_of_day(folder, DATED)
    assert f"{DAY}.npz' does not exist; {{date}} is {DAY}, as requested\n" in error


def test_missing_data_of_today_is_reported_with_the_day(folder: Path) -> None:
    zone = "Pacific/Kiritimati"
    today = datetime.now(ZoneInfo(zone)).date()
    text = DATED + f"daily: {{at: 02:30, zone: {zone}}}\n"
    error = error_of(folder, text)
    assert error.endswith(
        f"data: region 'A': '{folder}/data/A/{today}.npz' does not exist; "
        f"the data of 'NO' doesn't exist either; "
        f"{{date}} is {today}, today in {zone}; for another day: --date"
    )
    put(folder, today, "B")
    error = error_of(folder, text.replace("NO]", "BB]"))
    assert "(did you mean 'B'?); {date} is" in error
    assert f"{{date}} is {datetime.now().astimezone().date()}, today; for an" in error_of(
        folder, DATED
    )


def error_of_day(folder: Path, text: str) -> str:
    write(folder, text)
    return CliRunner().invoke(main, ["plan", "study.yaml", "--date", str(DAY)]).output


def test_data_with_a_name_that_no_file_can_have_is_absent(folder: Path) -> None:
    put(folder, DAY, "A", "NO")
    text = DATED.replace("{date}", "{date}" + "x" * 300)
    assert set(load_day(write(folder, text), DAY).unusable) == {"A", "NO"}


def test_a_date_placeholder_may_be_used_like_a_region_placeholder(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own" / f"{DAY}-A.npz").touch()
    put(folder, DAY, "{date}")
    regions = "regions: {A: {data: 'own/{date}-{region}.npz'}, '{date}': }"
    study = load_study(write(folder, DATED.replace("regions: [A, NO]", regions)), DAY)
    assert study.data_paths("A") == [f"{folder}/own/{DAY}-A.npz"]
    assert study.data_paths("{date}") == [f"{folder}/data/{{date}}/{DAY}.npz"]


def test_a_date_in_a_url_is_put_in(folder: Path) -> None:
    keys = "s3: {access_key_id_file: go.sh, secret_access_key_file: go.sh}\n"
    text = MINIMAL + keys + "data: s3://bucket/{date}/{region}.npz\n"
    assert load_study(write(folder, text), DAY).data_paths("A") == [f"s3://bucket/{DAY}/A.npz"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINIMAL + "data: '{dat}.npz'\n", "{dat} is not a placeholder (did you mean '{date}')"),
        (with_line("[A, NO]", "{glob: 'data/{date}/*.npz'}"), "{date} is allowed only in `data`"),
    ],
)
def test_a_misplaced_or_misspelt_date_is_explained(folder: Path, text: str, words: str) -> None:
    assert words in error_of(folder, text).replace("'?)", "')")


def test_a_plan_is_of_today_or_of_the_day_that_is_given(folder: Path) -> None:
    put(folder, DAY, "A", "NO")
    write(folder, DATED + "daily: {at: 02:30, zone: UTC}\n")
    today = datetime.now(UTC).date()
    asked = CliRunner().invoke(main, ["plan", "study.yaml", "--date", str(DAY), "--run-id", "r1"])
    assert asked.exit_code == 0, asked.output
    assert load_frozen(folder / "runs/demo/r1/study.json").day
    if today != DAY:
        assert f"{today}.npz" in CliRunner().invoke(main, ["plan", "study.yaml"]).output


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("22.11.2026", "'22.11.2026' is not a date; write DATE like 2"),
        ("tomorrow", "'tomorrow' is not a date; write DATE like 2"),
        ("2026-02-30", "the day '2026-02-30' does not exist; write DATE like 2"),
    ],
)
def test_a_value_that_is_no_date_is_refused(typed: str, expected: str) -> None:
    asked = CliRunner().invoke(main, ["plan", "study.yaml", "--date", typed])
    assert asked.exit_code == 2
    assert expected in asked.output


def test_a_date_without_effect_is_reported(folder: Path) -> None:
    write(folder, MINIMAL)
    command = ["plan", "study.yaml", "--run-id", "r1", "--date", str(DAY)]
    asked = CliRunner().invoke(main, command)
    assert f"no path in `data` contains {{date}}, so the date {DAY} has no effect" in asked.stderr
    put(folder, DAY, "A", "NO")
    write(folder, DATED)
    command[3] = "r2"
    assert "has no effect" not in CliRunner().invoke(main, command).stderr


def test_a_region_that_needs_no_data_is_not_absent(folder: Path) -> None:
    own = "regions: {A: {data: []}, NO: {data: 'data/NO/{date}.npz'}}"
    put(folder, DAY, "NO")
    found = load_day(write(folder, DATED.replace("regions: [A, NO]", own)), DAY)
    assert found.unusable == {}
    assert found.study
    assert found.study.data_paths("A") == []
