"""The files of the benchmark: flights, and three generated ones with traits that real files have.

In each file, the column `part` says whether a row is for training, validation or test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

PARTS = ("train", "validation", "test")
_MARCH, _ROWS = "3", 4000


class File(NamedTuple):
    """A file's rows and target, and the rest of its `table:` section without the split."""

    rows: pl.DataFrame
    target: str
    columns: dict[str, str]


def flights() -> File:
    """Return flights from JFK in March 2013; three days of five are for training."""
    from trialfleet.nodes.tabular.table import TEST, VALIDATION
    from trialfleet.workflows.examples.flights import prepare

    columns = prepare.features(prepare.package_data())
    chosen = (columns["origin"] == "JFK") & (columns.pop("month") == _MARCH)
    names = {VALIDATION: "validation", TEST: "test"}
    weeks = [names.get(part, "train") for part in prepare.WEEKS]
    rows = prepare.rows_of(columns, chosen, without="origin")
    part = [weeks[day % len(weeks)] for day in rows.pop("day").tolist()]
    frame = pl.DataFrame({**rows, "part": part})
    return File(frame, "late", {"weekday": "categorical"})


def late() -> File:
    """Return a regression over time, with columns that begin late, never vary, or hardly vary."""
    random = np.random.default_rng(1)
    x = random.normal(size=(_ROWS, 6))
    amount = random.lognormal(0, 1.2, _ROWS)
    y = x[:, 0] + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] * x[:, 3] + 0.5 * np.log(amount)
    row = np.arange(_ROWS)
    begins = {"never": 2 * _ROWS, "after": 0.7 * _ROWS, "just_before": 0.7 * _ROWS - 3}
    columns = {
        name: pl.Series(np.where(row >= begin, 50 + 9 * random.normal(size=_ROWS), np.nan))
        for name, begin in begins.items()
    }
    return _file(
        {f"x{place}": values for place, values in enumerate(x.T)}
        | {name: values.fill_nan(None) for name, values in columns.items()}
        | {
            "amount": amount,
            "constant": np.ones(_ROWS),
            "switched_on": (row > 0.8 * _ROWS).astype(float),
            "hardly": np.where(row < 0.7 * _ROWS, 1e-12 * (row == 9), random.normal(size=_ROWS)),
            "y": y + 0.3 * random.normal(size=_ROWS),
        },
        {},
    )


def spelt() -> File:
    """Return a file whose shops are numbers, some as `12.0`, some empty, and some new."""
    random = np.random.default_rng(2)
    shops = random.choice(60, _ROWS, p=(weights := random.gamma(1, 1, 60)) / weights.sum())
    effects, slopes = random.normal(size=60), random.normal(size=60)
    x = random.normal(size=(_ROWS, 3))
    score = effects[shops] + 0.7 * slopes[shops] * x[:, 0] + x[:, 1]
    row = np.arange(_ROWS)
    names = [
        None if number % 50 == 7 else f"{shop}" if number % 2 else f"{shop}.0"
        for number, shop in zip(row.tolist(), shops.tolist(), strict=True)
    ]
    opened = (row > 0.9 * _ROWS) & (row % 10 == 0)
    return _file(
        {f"x{place}": values for place, values in enumerate(x.T)}
        | {
            "shop": [
                f"{60 + n % 3}" if new else name
                for n, (new, name) in enumerate(zip(opened, names, strict=True))
            ],
            "y": np.where(score + random.logistic(0, 0.5, _ROWS) > 0, "yes", "no"),
        },
        {"shop": "categorical"},
    )


def narrow() -> File:
    """Return numbers whose spread float32 can't represent: a target of 1e9 ± 1, and times in s."""
    random = np.random.default_rng(3)
    x = random.normal(size=(_ROWS, 5))
    seconds = random.permutation(_ROWS) * 0.9
    wave = np.sin(2 * np.pi * seconds / 3600)
    y = x[:, 0] + np.abs(x[:, 1]) + 0.5 * x[:, 2] * x[:, 3] + wave
    return _file(
        {f"x{place}": values for place, values in enumerate(x.T)}
        | {"moment": 1_767_225_600 + seconds, "y": 1e9 + y + 0.3 * random.normal(size=_ROWS)},
        {},
    )


SETS: dict[str, Callable[[], File]] = {
    "flights": flights,
    "late": late,
    "spelt": spelt,
    "narrow": narrow,
}


def _file(
    columns: dict[str, npt.NDArray[Any] | pl.Series | list[Any]], roles: dict[str, str]
) -> File:
    counts = [round(share * _ROWS) for share in (0.7, 0.15, 0.15)]
    return File(pl.DataFrame({**columns, "part": np.repeat(PARTS, counts)}), "y", roles)
