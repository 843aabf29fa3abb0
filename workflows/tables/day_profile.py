"""The profile of a day's table: a few numbers, for comparison with the region's other days."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trialfleet.nodes.tabular.table import Table
from trialfleet.workflows.tables.label_score import LabelScore, label_score

if TYPE_CHECKING:
    from trialfleet.workflows.tables.table_from_rows import Description

MOST_CATEGORIES = 1_000  # of a column; with more, none are noted
_LONGEST = 60  # characters; a longer category or class is cut and gets a checksum
_STEPS = 20  # from the smallest to the largest target


@dataclass(frozen=True, kw_only=True)
class DayProfile:
    """A few numbers about a day's table, by which days are compared."""

    rows: int  # with a target
    target: str
    # the share of missing cells, of numeric, used categorical and empty columns
    missing: dict[str, float]
    ignored: list[str] = field(default_factory=list)  # the other columns that models don't use
    # rows of each category that a training row has, of columns with at most MOST_CATEGORIES
    categories: dict[str, dict[str, int]] = field(default_factory=dict)
    classes: dict[str, float] = field(default_factory=dict)  # share of rows; none in a regression
    quantiles: list[float] = field(default_factory=list)  # 21 of a regression's target
    labels: LabelScore | None = None  # how well the columns predict the target, if computed


def build_profile(table: Table, found: Description, *, seed: int, labels: bool) -> DayProfile:
    """Return the profile of a day's table.

    `found` is the table's description. If `labels` is True, the profile also says how well the
    columns predict the labels. This takes some time. `seed` determines which rows are sampled for
    this, and how the labels are shuffled.
    """
    rows, used = found.rows, table.used()
    missing = _missing(table, found)
    is_regression = found.task == "regression"
    steps = np.linspace(0, 1, _STEPS + 1)
    return DayProfile(
        rows=rows,
        target=found.target,
        missing=missing,
        ignored=[name for name in found.ignored if name not in missing],
        categories=dict(_category_counts(used)),
        classes={_shorten(name): count / rows for name, count in found.classes.items()},
        quantiles=np.quantile(table.target, steps).tolist() if is_regression else [],
        labels=label_score(used, seed) if labels else None,
    )


def _missing(table: Table, found: Description) -> dict[str, float]:
    rows, columns = found.rows, table.columns
    of_numbers = np.isnan(table.numeric).mean(0).tolist()
    categorical = {name: found.missing.get(name, 0) / rows for name in found.categorical}
    empty = dict.fromkeys(columns.empty, 1.0)
    return {**dict(zip(columns.numeric, of_numbers, strict=True)), **categorical, **empty}


def _category_counts(table: Table) -> Iterator[tuple[str, dict[str, int]]]:
    for number, (name, words) in enumerate(table.columns.categorical.items()):
        if len(words) <= MOST_CATEGORIES:
            counts = np.bincount(table.categorical[:, number], minlength=len(words) + 1)[1:]
            yield name, dict(zip(map(_shorten, words), counts.tolist(), strict=True))


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    checksum = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{text[: _LONGEST - len(checksum)]}…{checksum}"
