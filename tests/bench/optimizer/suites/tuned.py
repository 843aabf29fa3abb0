"""Search spaces and losses like real tuning tasks: rates, sizes, choices, conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tests.bench.optimizer.families import Parameters

Drawn: TypeAlias = tuple[dict[str, Any], Callable[[Parameters], float]]
Family: TypeAlias = Callable[[np.random.Generator], Drawn]


def learner(random: np.random.Generator) -> Drawn:
    """Return a task with two rates, a share, a depth, a width, and an optimiser choice.

    The optimiser determines the best rate. A rate that is too large costs more than one that is too
    small. A wide network needs a smaller rate. The best dropout depends on depth and width.
    """
    kinds = ["sgd", "adam", "adagrad"]
    best_rates = _each(kinds, random.uniform([-2, -3.6, -2.6], [-0.8, -2.4, -1.4]))
    handicaps = _each(kinds, random.permutation([0.0, 0.03, 0.08]))
    depth, width = random.uniform(2, 6), random.uniform(4, 7.5)
    decay, drop = random.uniform(-6, -3), random.uniform(0.1, 0.35)
    slower, steep, regular = (
        random.uniform(0.1, 0.4),
        random.uniform(1, 3),
        random.uniform(0.2, 0.6),
    )

    def loss(x: Parameters) -> float:
        size = math.log2(x["width"])
        rate = math.log10(x["rate"]) - best_rates[x["kind"]] + slower * (size - width) / 2
        badly = rate * rate * (steep if rate > 0 else 1.0)
        value = 0.15 * badly / (1 + 0.2 * badly) + handicaps[x["kind"]]
        value += 0.01 * (size - width) ** 2 + 0.006 * (x["depth"] - depth) ** 2
        wanted = drop + 0.03 * (x["depth"] - depth) + 0.02 * (size - width)
        value += regular * (float(x["dropout"]) - wanted) ** 2
        away = math.log10(x["decay"]) - decay + (float(x["dropout"]) - drop)
        return float(0.2 + value + 0.008 * away * away)

    space = {
        "rate": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
        "decay": {"type": "float", "low": 1e-8, "high": 1e-1, "log": True},
        "dropout": {"type": "float", "low": 0.0, "high": 0.6},
        "depth": {"type": "int", "low": 1, "high": 10},
        "width": {"type": "int", "low": 8, "high": 256, "log": True},
        "kind": {"type": "categorical", "choices": kinds},
    }
    return space, loss


def boosted(random: np.random.Generator) -> Drawn:
    """Return a task like boosted trees: the product of rate and number of trees matters.

    The best depth depends on the rate. The kind of growth determines whether depth or leaves
    count. A quarter of the space learns nothing and is flat.
    """
    growths = ["depth", "leaves"]
    sampling = _each(["none", "bagging", "goss"], random.permutation([0, 0.02, 0.05]))
    product, depth = random.uniform(0.8, 1.8), random.uniform(4, 9)
    leaves, weight = random.uniform(4, 7), random.uniform(-2, 1)
    share, better = random.uniform(0.4, 0.9), growths[int(random.integers(2))]

    def loss(x: Parameters) -> float:
        away = math.log10(x["rate"] * x["trees"]) - product
        value = 0.12 * away * away * (2.0 if away > 0 else 1.0)
        size = x["depth"] - depth if x["growth"] == "depth" else math.log2(x["leaves"]) - leaves
        value += 0.01 * (size + 2 * away) ** 2 + 0.04 * (x["growth"] != better)
        value += 0.015 * (math.log10(x["weight"]) - weight) ** 2
        value += 0.2 * (float(x["columns"]) - share) ** 2 + sampling[x["sampling"]]
        return float(0.3 + min(value, 0.5))

    space = {
        "rate": {"type": "float", "low": 1e-3, "high": 0.5, "log": True},
        "trees": {"type": "int", "low": 20, "high": 2000, "log": True},
        "growth": {"type": "categorical", "choices": growths},
        "depth": {"type": "int", "low": 2, "high": 12, "when": {"growth": "depth"}},
        "leaves": {"type": "int", "low": 4, "high": 512, "log": True, "when": {"growth": "leaves"}},
        "weight": {"type": "float", "low": 1e-3, "high": 100.0, "log": True},
        "columns": {"type": "float", "low": 0.2, "high": 1.0, "step": 0.1},
        "sampling": {"type": "categorical", "choices": list(sampling)},
    }
    return space, loss


def scheduled(random: np.random.Generator) -> Drawn:
    """Return a task with a scheduled rate: a narrow valley of rate and batch, near divergence."""
    schedules = _each(["constant", "cosine", "step"], random.permutation([0.06, 0.0, 0.02]))
    shifts = _each(schedules, random.uniform(-0.6, 0.6, 3))
    norms = _each(["batch", "layer"], random.permutation([0.0, 0.03]))
    rate, warm, smooth = (
        random.uniform(-3.2, -1.6),
        random.uniform(0.02, 0.2),
        random.uniform(0.02, 0.15),
    )
    cliff = random.uniform(0.6, 1.4)

    def loss(x: Parameters) -> float:
        batch = math.log2(x["batch"])
        away = math.log10(x["rate"]) - rate - shifts[x["schedule"]] - 0.15 * (batch - 6)
        value = 0.2 * away * away + 0.003 * (batch - 6) ** 2
        if away > cliff + float(x["warmup"]) * 2:
            value += 1.0 + away  # diverged
        value += 3 * (float(x["warmup"]) - warm) ** 2 + 2 * (float(x["smoothing"]) - smooth) ** 2
        return float(0.1 + value + schedules[x["schedule"]] + norms[x["norm"]])

    space = {
        "rate": {"type": "float", "low": 1e-6, "high": 1.0, "log": True},
        "batch": {"type": "int", "low": 8, "high": 4096, "log": True},
        "schedule": {"type": "categorical", "choices": list(schedules)},
        "warmup": {"type": "float", "low": 0.0, "high": 0.3},
        "smoothing": {"type": "float", "low": 0.0, "high": 0.3, "step": 0.02},
        "norm": {"type": "categorical", "choices": list(norms)},
    }
    return space, loss


def factors(random: np.random.Generator) -> Drawn:
    """Return a task like a recommender: many weak parameters; the better basin is narrower."""
    kinds = _each(["dot", "mlp", "cross", "both"], random.permutation([0.0, 0.01, 0.03, 0.06]))
    centres = random.uniform(0.15, 0.85, (2, 5))
    narrow, wide = random.uniform(0.12, 0.2), random.uniform(0.5, 0.8)
    hashes = int(random.integers(1, 5))

    def loss(x: Parameters) -> float:
        at = np.array(
            [
                (math.log10(x["rate"]) + 5) / 4,
                (math.log10(x["decay"]) + 8) / 6,
                (math.log2(x["embedding"]) - 2) / 6,
                float(x["dropout"]) / 0.5,
                (x["layers"] - 1) / 5,
            ]
        )
        away = ((at - centres) ** 2).mean(axis=1)
        basins = np.exp(-away / np.array([narrow, wide]) ** 2) * np.array([0.3, 0.2])
        value = 0.5 - float(basins.max()) + 0.05 * float(away.min())
        return float(value + kinds[x["kind"]] + 0.01 * abs(x["hashes"] - hashes))

    space = {
        "rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
        "decay": {"type": "float", "low": 1e-8, "high": 1e-2, "log": True},
        "embedding": {"type": "int", "low": 4, "high": 256, "log": True},
        "dropout": {"type": "float", "low": 0.0, "high": 0.5},
        "layers": {"type": "int", "low": 1, "high": 6},
        "hashes": {"type": "int", "low": 1, "high": 4},
        "kind": {"type": "categorical", "choices": list(kinds)},
    }
    return space, loss


TUNED: Mapping[str, Family] = {"learner": learner}  # for development
# written before any optimiser was run on them; used once, by a finished one
TUNED_HELD_OUT: Mapping[str, Family] = {
    "boosted": boosted,
    "scheduled": scheduled,
    "factors": factors,
}


def _each(names: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))
