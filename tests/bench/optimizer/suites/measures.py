"""Measures of the suites: wins, ratios of regrets, reached targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.bench.optimizer.charts import Array, Curve, chart
from tests.bench.optimizer.runs import LEAST, bounds, interval, resampled_means
from tests.bench.optimizer.suites.one_run import Place, Run

TARGETS = np.logspace(0, -4, 41)  # regrets, from the median random point's down to 1e-4 of it
Found = Mapping[str, Mapping[Place, Run]]  # by rival


def by_rival(runs: Sequence[Run], suite: str, rivals: Sequence[str]) -> Found:
    """Return a suite's runs by optimiser, for the problems that all optimisers have done."""
    own = {
        name: {x.place: x for x in runs if (x.rival, x.suite) == (name, suite)} for name in rivals
    }
    present = {name: found for name, found in own.items() if found}
    common = set.intersection(*(set(found) for found in present.values())) if present else set()
    return {
        name: {place: found[place] for place in sorted(common)} for name, found in present.items()
    }


def won(mine: Array, others: Array) -> Array:
    """Return 1 for each problem whose regret in `mine` is smaller, 0.5 for a tie, else 0."""
    first, second = np.maximum(mine, LEAST), np.maximum(others, LEAST)
    return np.where(first == second, 0.5, (first < second).astype(float))


def share(values: Array) -> str:
    """Return a mean as a percentage, and the interval of its bootstrap samples."""
    low, high = bounds(resampled_means(values))
    return f"**{values.mean():.0%}** ({low:.0%} to {high:.0%})"


def reached(regrets: Array) -> Array:
    """Return the share of targets that each run reached by each trial, [runs, trials]."""
    return np.asarray((regrets[..., None] <= TARGETS).mean(axis=-1))


def table(found: Found, base: str) -> str:
    """Return the comparison of one rival with the others, in Markdown."""
    heads = ["rival", f"{base} wins", "ratio of regrets", "regret", "targets", "s per ask"]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    mine = _last(found[base])
    for name, runs in found.items():
        regrets = _last(runs)
        cells = [name, "", "1"]
        if name != base:
            ratios = np.log(np.maximum(mine, LEAST)) - np.log(np.maximum(regrets, LEAST))
            cells = [name, share(won(mine, regrets)), interval(ratios)]
        cells.append(f"{np.exp(np.log(np.maximum(regrets, LEAST)).mean()):.1e}")
        cells.append(f"{reached(_regrets(runs))[:, -1].mean():.0%}")
        cells.append(f"{_seconds(runs):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drawn(found: Found) -> str:
    """Return the chart of reached targets, as SVG."""
    curves = []
    for name, runs in found.items():
        shares = reached(_regrets(runs))
        curves.append(Curve(name, shares.mean(axis=0), *bounds(resampled_means(shares))))
    return chart(curves, x="trials that have ended", y="share of targets reached", linear=True)


def _regrets(runs: Mapping[Place, Run]) -> Array:
    return np.array([run.regrets for run in runs.values()])


def _last(runs: Mapping[Place, Run]) -> Array:
    return np.array([run.regrets[-1] for run in runs.values()])


def _seconds(runs: Mapping[Place, Run]) -> float:
    """Return the median duration of a proposal in the second half of the runs."""
    return float(np.median([run.seconds[len(run.seconds) // 2 :] for run in runs.values()]))
