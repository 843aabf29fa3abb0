"""Functions with a known optimum, drawn from families with random constants.

Branin and Hartmann are those of https://www.sfu.ca/~ssurjano/optimization.html, with random
constants for each task, as in the literature on transfer. The network is like the trainings that
studies tune: logarithmic rates, whole numbers, a choice that determines the best rate, a parameter
that exists only for one choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A function to minimize.

    Attributes:
        name: name of its family.
        space: its search space, as in a study file.
        loss: its value without noise.
        optimum: its least value.
        typical: its median value over the space minus the optimum: the unit of regrets.
        noise: standard deviation of the noise of a trial.
    """

    name: str
    space: dict[str, Any]
    loss: Callable[[Parameters], float]
    optimum: float
    typical: float
    noise: float

    def regret(self, params: Parameters) -> float:
        """Return a point's regret, in units of the median point's regret."""
        return max(0.0, self.loss(params) - self.optimum) / self.typical


Draws: TypeAlias = "np.random.Generator | _Between"  # a source of a task's constants


def _unit(low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
    return {"type": "float", "low": low, "high": high}


def branin(random: Draws) -> tuple[dict[str, Any], Callable[[Parameters], float]]:
    """Return a function of two parameters with up to three minima, one or more global."""
    a, b, c = random.uniform(0.5, 1.5), random.uniform(0.1, 0.15), random.uniform(1, 2)
    r, s, t = random.uniform(5, 7), random.uniform(8, 12), random.uniform(0.03, 0.05)

    def loss(x: Parameters) -> float:
        u, v = float(x["x"]), float(x["y"])
        bowl = v - b * u * u + c * u - r
        return float(a * bowl * bowl + s * (1 - t) * math.cos(u) + s)

    return {"x": _unit(-5, 10), "y": _unit(0, 15)}, loss


_A3 = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
_P3 = 1e-4 * np.array(
    [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
)
_A6 = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_P6 = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def _hartmann(
    a: Array, p: Array, random: Draws
) -> tuple[dict[str, Any], Callable[[Parameters], float]]:
    weights = np.array([1.0, 1.2, 3.0, 3.2]) + random.uniform(-0.2, 0.2, 4)
    centres = np.clip(p + random.uniform(-0.1, 0.1, p.shape), 0, 1)
    names = [f"x{i}" for i in range(p.shape[1])]

    def loss(x: Parameters) -> float:
        at = np.array([float(x[name]) for name in names])
        return -float(weights @ np.exp(-(a * (at - centres) ** 2).sum(axis=1)))

    return {name: _unit() for name in names}, loss


def hartmann3(random: Draws) -> tuple[dict[str, Any], Callable[[Parameters], float]]:
    """Return a function of three parameters with four basins."""
    return _hartmann(_A3, _P3, random)


def hartmann6(random: Draws) -> tuple[dict[str, Any], Callable[[Parameters], float]]:
    """Return a function of six parameters with four narrow basins."""
    return _hartmann(_A6, _P6, random)


def network(random: Draws) -> tuple[dict[str, Any], Callable[[Parameters], float]]:
    """Return a function like a network's training: rates, sizes, choices, a condition."""
    kinds = ["sgd", "adam", "lion"]
    best_rate = dict(zip(kinds, random.uniform([-2, -3.5, -4.5], [-1, -2.5, -3.5]), strict=True))
    handicap = dict(zip(kinds, random.permutation([0.0, 0.04, 0.1]), strict=True))
    width, drop, decay = random.uniform(4, 8), random.uniform(0.1, 0.4), random.uniform(-5, -2)
    momentum, coupling = random.uniform(0.5, 0.95), random.uniform(-0.3, 0.3)
    activations = ["relu", "gelu", "tanh"]
    activation = dict(zip(activations, random.permutation([0, 0.01, 0.05]), strict=True))

    def loss(x: Parameters) -> float:
        kind = x["kind"]
        size = math.log2(x["units"])
        rate = math.log10(x["rate"]) - best_rate[kind] - coupling * (size - 6)
        if kind == "sgd":  # more momentum wants a smaller rate
            rate += 0.8 * (float(x["momentum"]) - momentum)
        overfit = max(0.0, size - width) * (0.5 - float(x["drop"]))
        value = 0.1 * rate * rate / (1 + 0.15 * rate * rate) + 0.008 * (size - width) ** 2
        value += 0.4 * (float(x["drop"]) - drop) ** 2 + 0.03 * overfit
        value += 0.01 * (math.log10(x["decay"]) - decay) ** 2
        return float(0.2 + value + handicap[kind] + activation[x["activation"]])

    space = {
        "rate": {"type": "float", "low": 1e-6, "high": 1.0, "log": True},
        "units": {"type": "int", "low": 8, "high": 1024, "log": True},
        "drop": {"type": "float", "low": 0.0, "high": 0.6, "step": 0.05},
        "decay": {"type": "float", "low": 1e-7, "high": 1e-1, "log": True},
        "kind": {"type": "categorical", "choices": kinds},
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"kind": "sgd"}},
        "activation": {"type": "categorical", "choices": activations},
    }
    return space, loss


def mixed(random: Draws) -> tuple[dict[str, Any], Callable[[Parameters], float]]:
    """Return a function of six parameters; two are choices that move the others' optimum."""
    shifts = {kind: random.uniform(0.15, 0.85, 3) for kind in "abc"}
    offsets = dict(zip("abc", random.permutation([0.0, 0.05, 0.15]), strict=True))
    scales = random.uniform(0.5, 2.0, 3)
    best_count = int(random.integers(2, 12))
    flag = bool(random.integers(2))

    def loss(x: Parameters) -> float:
        at = np.array([float(x["u"]), float(x["v"]), (math.log10(x["w"]) + 5) / 5])
        away = at - shifts[x["kind"]]
        value = float(scales @ (away * away)) + 0.3 * float(away[0] * away[1])
        value += 0.004 * (x["count"] - best_count) ** 2 + offsets[x["kind"]]
        return float(value + (0.0 if x["flag"] == flag else 0.06 + 0.2 * abs(away[2])))

    space = {
        "u": _unit(),
        "v": _unit(),
        "w": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
        "count": {"type": "int", "low": 1, "high": 16},
        "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
        "flag": {"type": "categorical", "choices": [True, False]},
    }
    return space, loss


FAMILIES = {f.__name__: f for f in (branin, hartmann3, hartmann6, mixed, network)}
_LOOKED_AT = 4000


def task(family: str, seed: int, *, noisy: bool) -> Task:
    """Return task number `seed` of a family; its noise is a twentieth of the values' spread."""
    random = np.random.default_rng([seed, *family.encode()])
    return described(family, *FAMILIES[family](random), random, noisy=noisy)


def sibling(family: str, seed: int, number: int, *, apart: float) -> Task:
    """Return one of several similar tasks with the same seed.

    Args:
        family: its name.
        seed: seed of the common constants.
        number: its number.
        apart: distance of its constants from the common ones towards random ones, 0 to 1. Its
            choices are the common ones.
    """
    common = np.random.default_rng([seed, *family.encode()])
    own = np.random.default_rng([seed, number, *family.encode()])
    drawn = FAMILIES[family](_Between(common, own, apart))
    return described(family, *drawn, np.random.default_rng([seed, number]), noisy=False)


class _Between:
    """Random numbers between those of two generators; choices are those of the first one."""

    def __init__(self, common: np.random.Generator, own: np.random.Generator, apart: float) -> None:
        self._common, self._own, self._apart = common, own, apart
        self.permutation, self.integers = common.permutation, common.integers

    def uniform(self, *arguments: Any) -> Any:
        drawn = self._common.uniform(*arguments), self._own.uniform(*arguments)
        return (1 - self._apart) * drawn[0] + self._apart * drawn[1]


def described(
    family: str,
    space: dict[str, Any],
    loss: Callable[[Parameters], float],
    random: np.random.Generator,
    *,
    noisy: bool,
) -> Task:
    """Return the task of a function; its optimum is searched from the best random points."""
    points = [random_point(space, random) for _ in range(_LOOKED_AT)]
    values = np.array([loss(point) for point in points])
    order = np.argsort(values)
    optimum = min(_polished(space, loss, points[i]) for i in order[:12])
    typical = float(np.median(values)) - optimum
    noise = 0.05 * float(np.quantile(values, 0.75) - np.quantile(values, 0.25)) if noisy else 0.0
    return Task(family, space, loss, optimum, typical, noise)


def random_point(space: Mapping[str, Any], random: np.random.Generator) -> dict[str, Any]:
    """Return a uniformly random point of a space."""
    return {name: _at(entry, float(random.uniform())) for name, entry in space.items()}


def _at(entry: Mapping[str, Any], u: float) -> Any:
    if entry["type"] == "categorical":
        choices = entry["choices"]
        return choices[min(int(u * len(choices)), len(choices) - 1)]
    low, high = entry["low"], entry["high"]
    value = low * (high / low) ** u if entry.get("log") else low + (high - low) * u
    if entry["type"] == "int":
        return round(value)
    step = entry.get("step")
    return low + round((value - low) / step) * step if step else value


def _polished(
    space: Mapping[str, Any], loss: Callable[[Parameters], float], start: Mapping[str, Any]
) -> float:
    """Return the least value near `start`, from changes of single numbers and choices."""
    discrete = {
        name: entry["choices"] if entry["type"] == "categorical" else _grid(entry)
        for name, entry in space.items()
        if entry["type"] != "float" or "step" in entry
    }
    free = [name for name in space if name not in discrete]
    point, best = dict(start), loss(start)
    for _ in range(4):
        for name, values in discrete.items():
            point[name] = min(values, key=lambda x: loss({**point, name: x}))
        point, value = _descended(space, loss, point, free)
        if best - value < 1e-12:
            break
        best = value
    choices = [space[name]["choices"] for name in discrete if space[name]["type"] == "categorical"]
    names = [name for name in discrete if space[name]["type"] == "categorical"]
    for combination in itertools.product(*choices):
        other = {**point, **dict(zip(names, combination, strict=True))}
        best = min(best, _descended(space, loss, other, free)[1])
    return min(best, loss(point))


def _grid(entry: Mapping[str, Any]) -> list[Any]:
    if entry["type"] == "int":
        return list(range(entry["low"], entry["high"] + 1))
    steps = round((entry["high"] - entry["low"]) / entry["step"])
    return [entry["low"] + i * entry["step"] for i in range(steps + 1)]


def _descended(
    space: Mapping[str, Any],
    loss: Callable[[Parameters], float],
    point: Mapping[str, Any],
    free: list[str],
) -> tuple[dict[str, Any], float]:
    def logs(name: str, x: float) -> float:
        return math.log(x) if space[name].get("log") else x

    def value_of(at: Array) -> dict[str, Any]:
        numbers = [
            math.exp(x) if space[n].get("log") else float(x) for n, x in zip(free, at, strict=True)
        ]
        clipped = [
            min(max(x, space[n]["low"]), space[n]["high"])
            for n, x in zip(free, numbers, strict=True)
        ]
        return {**point, **dict(zip(free, clipped, strict=True))}

    bounds = [(logs(n, space[n]["low"]), logs(n, space[n]["high"])) for n in free]
    found = minimize(
        lambda at: loss(value_of(at)),
        [logs(n, point[n]) for n in free],
        method="L-BFGS-B",
        bounds=bounds,
    )
    return value_of(found.x), float(found.fun)
