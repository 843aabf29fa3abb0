"""A profile of a day's table in a few numbers, for comparison with the region's other days."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trialfleet.nodes.tabular.table import Table
from trialfleet.workflows.tables.label_score import LabelScore, label_score

if TYPE_CHECKING:
    from trialfleet.workflows.tables.building import Description

MOST_CATEGORIES = 1_000  # of a column; those of a column with more are not noted
_LONGEST = 60  # characters of a category or class; of a longer one its beginning and a checksum
_STEPS = 20  # between the least and the largest target


@dataclass(frozen=True, kw_only=True)
class DayProfile:
    """The profile of a day's table.

    Attributes:
        target: the column to predict.
        missing: the share of its rows in which a column's cell is missing, by column.
        ignored: columns of the file without that share: no model uses them.
        categories: the rows that each category has, by column; only of rows to train.
        classes: the share of the rows that each class has; empty for a regression.
        quantiles: of a regression's target, in twenty steps from the least to the largest.
        labels: how well columns predict the target; None if unknown.
    """

    rows: int
    target: str
    missing: dict[str, float]
    ignored: list[str] = field(default_factory=list)
    categories: dict[str, dict[str, int]] = field(default_factory=dict)
    classes: dict[str, float] = field(default_factory=dict)
    quantiles: list[float] = field(default_factory=list)
    labels: LabelScore | None = None


def profile_of(table: Table, found: Description, *, seed: int, labels: bool) -> DayProfile:
    """Return the profile of a day's table, without a label score if not `labels`."""
    rows, used = found.rows, table.used()
    missing = _missing(table, found)
    is_regression = found.task == "regression"
    steps = np.linspace(0, 1, _STEPS + 1)
    return DayProfile(
        rows=rows,
        target=found.target,
        missing=missing,
        ignored=[name for name in found.ignored if name not in missing],
        categories=dict(_categories(used)),
        classes={_short(name): count / rows for name, count in found.classes.items()},
        quantiles=np.quantile(table.target, steps).tolist() if is_regression else [],
        labels=label_score(used, seed) if labels else None,
    )


def _missing(table: Table, found: Description) -> dict[str, float]:
    """Return the share of missing cells of each column that a model uses or might use."""
    rows, columns = found.rows, table.columns
    of_numbers = np.isnan(table.numeric).mean(0).tolist()
    categorical = {name: found.missing.get(name, 0) / rows for name in found.categorical}
    empty = dict.fromkeys(columns.empty, 1.0)
    return {**dict(zip(columns.numeric, of_numbers, strict=True)), **categorical, **empty}


def _categories(table: Table) -> Iterator[tuple[str, dict[str, int]]]:
    for number, (name, words) in enumerate(table.columns.categorical.items()):
        if len(words) <= MOST_CATEGORIES:
            counts = np.bincount(table.categorical[:, number], minlength=len(words) + 1)[1:]
            yield name, dict(zip(map(_short, words), counts.tolist(), strict=True))


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    checksum = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{text[: _LONGEST - len(checksum)]}…{checksum}"
