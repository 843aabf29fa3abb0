"""A test whether columns predict a table's labels better than they predict shuffled labels.

The target is correlated with features of each column, on a sample of the rows. A numeric column's
features are its ranks, their squares, and whether a cell is missing. A categorical column's
features are its categories. The score is the fourth root of the sum of the correlations' fourth
powers. So one strong column counts as much as many weak ones. The test misses patterns that show
only in several columns together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from trialfleet.nodes.tabular.table import Table

SHUFFLES = 99
FEWEST_ROWS = 30
_MOST_ROWS, _LEAST_ROWS = 4_000, 500
_CELLS = 1_000_000  # approximate size of the sample
_MOST_WORDS = 20  # number of a column's most frequent categories, and of classes
_BLOCK = 256  # values per row in one multiplication
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class LabelScore:
    """The score of a table's true labels, and the best score of 99 shufflings of these labels."""

    score: float
    shuffled: float

    @property
    def ratio(self) -> float:
        """`score` divided by `shuffled`; above 1 if the columns predict the true labels better."""
        return self.score / self.shuffled


def label_score(table: Table, seed: int) -> LabelScore | None:
    """Return a table's score; None if it has few rows, or if its target or columns are constant."""
    if len(table.target) < FEWEST_ROWS:
        return None
    dealt = np.random.default_rng(seed)
    width = table.numeric.shape[1] + table.categorical.shape[1]
    most = min(_MOST_ROWS, max(_LEAST_ROWS, _CELLS // max(1, width)))
    rows = np.sort(dealt.permutation(len(table.target))[:most])
    goal = _goal(table, rows)
    orders = [np.arange(len(rows)), *(dealt.permutation(len(rows)) for _ in range(SHUFFLES))]
    goals = np.concatenate([goal[order] for order in orders], axis=1)
    total = np.zeros(len(orders))
    for block in _blocks(_values(table, rows)):
        correlations = block.T @ goals / len(rows)
        powers = (correlations**4).sum(0)
        total += powers.reshape(len(orders), -1).sum(1)
    scores = total**0.25
    shuffled = float(scores[1:].max())
    return LabelScore(float(scores[0]), shuffled) if shuffled else None


def _goal(table: Table, rows: npt.NDArray[np.int64]) -> Floats:
    target = table.target[rows]
    if table.columns.task == "regression":
        return _standardise(_ranks(target))[:, None]
    return np.stack([*_each_word(target.astype(np.int64))], axis=1)


def _values(table: Table, rows: npt.NDArray[np.int64]) -> Iterator[Floats]:
    """Yield the features of each column, scaled to mean 0 and variance 1."""
    for column in table.numeric.T:
        numbers = column[rows]
        is_missing = np.isnan(numbers)
        ranks = np.zeros(len(rows), np.float32)
        ranks[~is_missing] = _ranks(numbers[~is_missing])
        yield _standardise(ranks)
        yield _standardise(np.where(is_missing, 0, ranks**2))
        yield _standardise(is_missing)
    for codes in table.categorical.T:
        yield from _each_word(codes[rows])


def _each_word(codes: npt.NDArray[np.integer[Any]]) -> Iterator[Floats]:
    counts = np.bincount(codes)
    for code in np.argsort(-counts, kind="stable")[:_MOST_WORDS]:
        yield _standardise(codes == code)


def _ranks(numbers: Floats) -> Floats:
    """Return the ranks of `numbers`, scaled to -0.5 to 0.5. Equal numbers have equal ranks."""
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts - 1) / 2
    ranks: Floats = (middles[places] / (len(numbers) + 1) - 0.5).astype(np.float32)
    return ranks


def _standardise(values: npt.NDArray[Any]) -> Floats:
    centred = values.astype(np.float32) - values.mean(dtype=np.float64).astype(np.float32)
    spread = float(np.sqrt((centred.astype(np.float64) ** 2).mean()))
    scaled: Floats = centred / spread if spread > 1e-6 else np.zeros(len(values), np.float32)
    return scaled.astype(np.float32)


def _blocks(values: Iterator[Floats]) -> Iterator[Floats]:
    while block := list(islice(values, _BLOCK)):
        yield np.stack(block, axis=1)
