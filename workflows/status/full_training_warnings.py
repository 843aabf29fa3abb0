"""Warnings that a full training is far worse than all trials, or has an implausible test loss.

The first warning says that the training may have diverged. It is given if the training is worse
than the worst trial, by more than the difference between the worst and the best trial. The second
warning exists only with `trainer: tabular`. It is given if the validation and test losses differ by
more than chance explains.

Notation, for the rows of one part of a table:

    n       the number of rows
    m       the mean of their losses: `val_loss`, `test_loss`
    c       the losses' coefficient of variation: standard deviation / mean

If both parts come from the same distribution, ln(m_test / m_val) differs from 0 only by chance. Its
standard error is about c · √(1/n_val + 1/n_test) (the delta method). The second warning requires:

- a difference of more than three standard errors
- losses that differ by more than a factor of two, because with many rows a small difference is
  significant but not relevant

For squared errors, c is 2. It would be √2 for normal errors, but real errors have longer tails. For
cross-entropies, c is 3, because a few surprising rows dominate them. For example, with 10, 30 or
100 rows in each part, the second warning needs mean squared errors that differ by a factor of 15,
4.7 or 2.3.

c is fixed, not measured from the losses of rows, because an outlier would increase c and hide
itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.objective import loss
from trialfleet.workflows.facts.models.verdict import CHALLENGER
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.table_findings import read_description
from trialfleet.workflows.formatting import result_text
from trialfleet.workflows.status.attempts.outcome import reported_metrics
from trialfleet.workflows.study.spec import Study, Trainer

_LEAST_TRIALS = 3  # with fewer trials their range says little
LEAST_FACTOR = 2.0  # of the losses: a smaller one is not relevant
_ERRORS = 3.0  # standard errors beyond chance
_SPREAD = {"regression": 2.0}  # c of squared errors
_SPREAD_OF_CLASSES = 3.0  # c of cross-entropies
_MOST_OF_IT = 0.5  # the part of all rows' losses for a warning on one row
_MOST_LOSSES = 16 << 20  # bytes to read: each status of a region may read them
_VALIDATION, _TEST = "val_", "test_"


def noise_factor(task: str, validation: int, test: int) -> float:
    """Return the greatest factor by which the losses of two parts may differ by chance.

    `task` is "regression" or "classification". `validation` and `test` are the parts' numbers of
    rows. The result is at least `LEAST_FACTOR`.
    """
    spread = _SPREAD.get(task, _SPREAD_OF_CLASSES)
    return max(LEAST_FACTOR, math.exp(_ERRORS * spread * math.sqrt(1 / validation + 1 / test)))


def full_training_warning(
    files: RegionFolder, study: Study, results: Sequence[float]
) -> str | None:
    """Return the warning about a full training's metrics, or None.

    `results` has the objective's value of each complete trial of the region.
    """
    return _worse_than_trials(files, study, results) or holdout_warning(files, study)


def _worse_than_trials(files: RegionFolder, study: Study, results: Sequence[float]) -> str | None:
    metric, direction = study.objective.metric, study.objective.direction
    own = reported_metrics(files.best).get(metric)
    losses = [loss(result, direction) for result in results]
    if own is None or len(losses) < _LEAST_TRIALS or max(losses) == min(losses):
        return None
    if loss(own, direction) - max(losses) <= max(losses) - min(losses):
        return None
    best = min(results, key=lambda result: loss(result, direction))
    return (
        f"the full training's {result_text(metric, own)} is far worse than the results of all "
        f"{len(results)} trials, whose best is {best:.5g}: the training may have diverged"
    )


def holdout_warning(files: RegionFolder, study: Study) -> str | None:
    """Return a warning if a full training's validation and test losses differ too much, else None.

    Only the losses of `trainer: tabular` are checked.
    """
    if isinstance(study.trainer, Trainer) or not files.best.result.exists():
        return None
    try:
        table = read_description(files)
        parts = table["parts"] if table else {}
        rows = int(parts["validation"]), int(parts["test"])
    except (InputError, LookupError, TypeError, ValueError, OSError):
        return None  # its number of rows is unknown
    return _warning(
        reported_metrics(files.best), str((table or {}).get("task")), rows, study, files
    )


def _warning(
    metrics: dict[str, float], task: str, rows: tuple[int, int], study: Study, files: RegionFolder
) -> str | None:
    validation, test = metrics.get(f"{_VALIDATION}loss"), metrics.get(f"{_TEST}loss")
    if not validation or not test or min(validation, test) <= 0 or min(rows) <= 0:
        return None
    factor = max(validation / test, test / validation)
    if factor <= noise_factor(task, *rows):
        return None
    name = _short_objective(study.objective.metric, metrics)
    own, other = (result_text(each, metrics[each]) for each in (_VALIDATION + name, _TEST + name))
    text = (
        f"{own} and {other} differ by more than chance explains with {rows[0]} and {rows[1]} rows "
        f"(their losses by a factor of {factor:.3g})"
    )
    if (share := _greatest_share(files.gate)) > _MOST_OF_IT:
        return f"{text}: one test row makes up {share:.0%} of the loss; check whether it is right"
    if test > validation:
        cause = "a few unusual test rows, or later rows that differ from earlier ones"
    else:
        cause = "a few unusual validation rows, which also influence the choice of the best trial"
    return f"{text}; the usual cause: {cause}"


def _short_objective(objective: str, metrics: dict[str, Any]) -> str:
    name = objective.removeprefix(_VALIDATION).removeprefix(_TEST)
    known = {f"{_VALIDATION}{name}", f"{_TEST}{name}"} <= metrics.keys()
    return name if known else "loss"


def _greatest_share(gate: TrialFolder) -> float:
    """Return the worst row's share of the total test loss, from 0 to 1. Unknown losses give 0."""
    file = gate.losses / f"{CHALLENGER}.txt"
    try:
        text = untrusted_files.read_bytes(file, _MOST_LOSSES, gate.root)
        losses = [float(line) for line in text.split()]
    except (OSError, ValueError):
        return 0.0
    return max(losses) / sum(losses) if losses and sum(losses) > 0 else 0.0
