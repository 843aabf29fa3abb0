"""Whether a model's validation and test losses differ by more than their rows explain.

Notation, for the rows of one part of a table:

    n       how many rows
    m       the mean of their losses: `val_loss`, `test_loss`
    c       the losses' coefficient of variation: standard deviation / mean

Were both parts drawn alike, ln(m_test / m_val) would be 0 but for chance, with a standard error of
about c · √(1/n_val + 1/n_test) (the delta method). A person is told where it is beyond three of
these, and the losses differ by a factor of two at the least: with many rows a small difference is
no chance either, and yet nothing to see to. c is 2 for squared errors, more than the √2 of normal
errors, because real ones have longer tails, and 3 for cross-entropies, which a few surprising rows
make up. So 30 rows in each part take a factor of 4.7 in the squared error (2.2 in its root) before
anything is said, 100 rows one of 2.3, and 10 rows one of 15.

The losses of single rows would measure c; but a c that an outlier makes would excuse what the
outlier did. Where a gate left them they say how much of the loss one row makes up.
"""

from __future__ import annotations

import math
from typing import Any

from trialfleet import job_files
from trialfleet.errors import InputError
from trialfleet.workflows.facts.models.verdict import CHALLENGER
from trialfleet.workflows.facts.record_shapes import Result
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.table_findings import found_in
from trialfleet.workflows.formatting import result_text
from trialfleet.workflows.study.spec import Study, Trainer

LEAST_FACTOR = 2.0  # of the losses: less is nothing to see to
_ERRORS = 3.0  # standard errors that are no chance
_SPREAD = {"regression": 2.0}  # c of squared errors
_SPREAD_OF_CLASSES = 3.0  # c of cross-entropies
_MOST_OF_IT = 0.5  # of the sum of all rows' losses: one row makes up so much
_MOST_LOSSES = 16 << 20  # bytes that are looked at: each look at a region may do so
_VALIDATION, _TEST = "val_", "test_"


def factor_of_chance(task: str, validation: int, test: int) -> float:
    """Return by which factor the losses of two parts of a table may differ by chance.

    Args:
        task: "regression", or what classes are told apart by.
        validation: rows of the one part.
        test: rows of the other.
    """
    spread = _SPREAD.get(task, _SPREAD_OF_CLASSES)
    return max(LEAST_FACTOR, math.exp(_ERRORS * spread * math.sqrt(1 / validation + 1 / test)))


def holdout_warning(files: RegionFolder, study: Study) -> str | None:
    """Return what a person should know of a full training's losses; None: nothing.

    Args:
        files: the region's.
        study: the run's; only `trainer: tabular` says what its losses are.
    """
    if isinstance(study.trainer, Trainer) or not files.best.result.exists():
        return None
    try:
        found = job_files.read_record(
            files.best.result, "metrics", shape=Result, most=job_files.MOST_RESULT
        )
        table = found_in(files)
        parts = table["parts"] if table else {}
        rows = int(parts["validation"]), int(parts["test"])
    except (InputError, LookupError, TypeError, ValueError, OSError):
        return None  # it trains still, or its rows are nowhere told
    return _warning(found["metrics"], str((table or {}).get("task")), rows, study, files)


def _warning(
    metrics: dict[str, float], task: str, rows: tuple[int, int], study: Study, files: RegionFolder
) -> str | None:
    validation, test = metrics.get(f"{_VALIDATION}loss"), metrics.get(f"{_TEST}loss")
    if not validation or not test or min(validation, test) <= 0 or min(rows) <= 0:
        return None
    factor = max(validation / test, test / validation)
    if factor <= factor_of_chance(task, *rows):
        return None
    name = _shown(study.objective.metric, metrics)
    own, other = (result_text(each, metrics[each]) for each in (_VALIDATION + name, _TEST + name))
    told = (
        f"{own} and {other} are further apart "
        f"than {rows[0]} and {rows[1]} rows make likely (their losses by a factor of {factor:.3g})"
    )
    if (share := _greatest_share(files.gate)) > _MOST_OF_IT:
        return f"{told}: one test row makes up {share:.0%} of the loss; see whether it is right"
    if test > validation:
        cause = "a few test rows unlike the others, or rows of a later time unlike the earlier ones"
    else:
        cause = "a few validation rows unlike the others, by which trials are chosen all the same"
    return f"{told}: as a rule {cause}"


def _shown(objective: str, metrics: dict[str, Any]) -> str:
    """The metric that a person knows best of those that both parts have."""
    name = objective.removeprefix(_VALIDATION).removeprefix(_TEST)
    known = {f"{_VALIDATION}{name}", f"{_TEST}{name}"} <= metrics.keys()
    return name if known else "loss"


def _greatest_share(gate: TrialFolder) -> float:
    """How much of the test rows' loss one row makes up, by what a gate left; 0: nobody knows."""
    file = gate.losses / f"{CHALLENGER}.txt"
    try:
        text = job_files.read_bytes(file, _MOST_LOSSES, gate.root)
        losses = [float(line) for line in text.split()]
    except (OSError, ValueError):
        return 0.0
    return max(losses) / sum(losses) if losses and sum(losses) > 0 else 0.0
