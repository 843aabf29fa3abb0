"""Suites of functions with a known optimum: COCO's, and functions like real tuning tasks.

COCO's functions are those of its module `cocoex`, whose instances are the same everywhere. The
module gives the best point of each function; the value there is the optimum.

Half of COCO's functions are for development: they may be used for any number of changes to the
optimiser. The held-out functions measure the value of a finished change on functions that it was
not fitted to. The development half has the odd numbers: the choice is simple and was made before
any result. The half has two or three functions of each of COCO's five groups (separable; of
moderate and of high conditioning; multimodal with and without a global structure).
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench.optimizer.families import Parameters, Task, described, random_point
from tests.bench.optimizer.suites.tuned import TUNED, TUNED_HELD_OUT

DEVELOPMENT = tuple(str(number) for number in range(1, 25, 2))
HELD_OUT = tuple(str(number) for number in range(2, 25, 2))
INSTALL = ".venv/bin/pip install -r tests/bench/optimizer/requirements.txt"
NOISE = 0.1  # of the median random point's distance to the optimum, with --noise
_LOOKED_AT = 4000  # random points; their median is the unit of regrets


@dataclass(frozen=True)
class Suite:
    """Functions of one kind.

    Attributes:
        development: names of the functions for trying changes.
        held_out: names of the functions that no change is tried on.
        opened: makes the task of a function and an instance, counted from 1.
        missing: why the suite can't be opened here; empty if it can.
    """

    development: tuple[str, ...]
    held_out: tuple[str, ...]
    opened: Callable[[str, int], Task]
    missing: str = ""


def problem(suite: str, function: str, instance: int, *, noisy: bool) -> Task:
    """Return one function of a suite to minimize."""
    found = SUITES[suite].opened(function, instance)
    return replace(found, noise=NOISE * found.typical if noisy else 0.0)


# COCO's


def _coco(suite: str, dimension: int) -> Suite:
    def opened(function: str, instance: int) -> Task:
        return _coco_task(suite, dimension, int(function), instance)

    there = importlib.util.find_spec("cocoex") is not None
    missing = "" if there else f"there is no cocoex: {INSTALL}"
    return Suite(DEVELOPMENT, HELD_OUT, opened, missing)


def _coco_task(suite: str, dimension: int, function: int, instance: int) -> Task:
    import cocoex

    chosen = f"function_indices:{function} dimensions:{dimension} instance_indices:{instance}"
    given = cocoex.Suite(suite, "", chosen).get_problem(0)
    assert given.id_triple == (function, dimension, instance)
    space = _coco_space(given)

    def loss(x: Parameters) -> float:
        return float(given([x[name] for name in space]))

    optimum = float(given(_best_point(given)))
    random = np.random.default_rng([*suite.encode(), dimension, function, instance])
    values = [loss(random_point(space, random)) for _ in range(_LOOKED_AT)]
    return Task(suite, space, loss, optimum, float(np.median(values)) - optimum, 0.0)


def _coco_space(given: Any) -> dict[str, Any]:
    """Return the search space; whole numbers come first."""
    bounds = zip(given.lower_bounds.tolist(), given.upper_bounds.tolist(), strict=True)
    return {
        f"x{place}": {"type": "int", "low": round(low), "high": round(high)}
        if place < given.number_of_integer_variables
        else {"type": "float", "low": low, "high": high}
        for place, (low, high) in enumerate(bounds)
    }


def _best_point(given: Any) -> NDArray[np.float64]:
    """Return the best point, which COCO writes into a file of the current folder."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        given._best_parameter("print")
        text = Path("._bbob_problem_best_parameter.txt").read_text()
    return np.array([float(number) for number in text.split()])


# Functions like real tuning tasks


@lru_cache
def _tuned_task(function: str, instance: int) -> Task:
    random = np.random.default_rng([instance, *function.encode()])
    family = {**TUNED, **TUNED_HELD_OUT}[function]
    return described(function, *family(random), random, noisy=False)


SUITES: dict[str, Suite] = {
    "bbob-mixint-5": _coco("bbob-mixint", 5),
    "bbob-mixint-10": _coco("bbob-mixint", 10),
    "bbob-3": _coco("bbob", 3),
    "tuned": Suite(tuple(TUNED), tuple(TUNED_HELD_OUT), _tuned_task),
}
