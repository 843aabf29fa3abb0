"""The parameters of the next trial: defaults first, then start-up points, then the sampler's.

Every process computes the same parameters from the same study, previous results and trials. So the
parameters can be computed ahead, discarded, or repeated after a crash. What the model learns from a
trial depends on the trial's state:

COMPLETE   its value
FAIL       the worst value of all trials, because the point would otherwise be proposed again
PRUNED     the predicted value if the trial was stopped early, nothing if it was abandoned
RUNNING    the model's own prediction, so only the uncertainty near the point changes
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState

from trialfleet.objective import Direction, losses
from trialfleet.optimizer.sampling.names import OWN, Sampler
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.sampling.startup_count import halve_startup, results_awaited
from trialfleet.optimizer.sampling.warm_start import PreviousTasks, build_domain

if TYPE_CHECKING:
    from trialfleet.optimizer.space import Scalar, SearchSpace

Point = dict[str, "Scalar"]
Key = tuple[tuple[type, "Scalar"], ...]

SAMPLER_TRIES = 3  # asks of one of Optuna's samplers for a point that isn't in the history
DESIGN_TRIES = 256  # points of the design searched for one that isn't in the history
ENUMERABLE = 2000  # largest size of a space that is searched to its last unseen point


@dataclass(frozen=True)
class Suggestion:
    """A point to try: a value for each parameter. An inactive parameter has its default."""

    point: Point
    # by STUDY/RUN/REGION, the weights of earlier runs' regions from which the model learned
    taught: dict[str, float] = field(default_factory=dict)


def suggest(
    space: SearchSpace,
    history: Sequence[FrozenTrial],
    *,
    direction: Direction,
    seed: int,
    startup_trials: int,
    sampler: Sampler = OWN,
    previous: PreviousTasks | None = None,
) -> Suggestion:
    """Return the point to try next. It is new, unless no point outside `history` is found.

    The first point has the default values. The other start-up trials take good points of
    `previous`, then points of a scrambled Sobol sequence, which covers the space evenly. After the
    start-up trials, the sampler proposes. Only trialfleet's own sampler learns from `previous`.

    `history` has all trials so far, in the order of their creation, with their active parameters.
    `startup_trials` includes the trial with the default values. With `previous`, there are half as
    many start-up trials.
    """
    if not history:
        return Suggestion(space.canonical(space.defaults()))
    points = [space.canonical(trial.params) for trial in history]
    taken = {_key(point) for point in points}
    seed_of_ask = stable_seed(seed, len(history))
    taught: dict[str, float] = {}
    if in_startup(history, halve_startup(startup_trials) if previous else startup_trials):
        proposed = previous.startup_points(space, len(history) + 1) if previous else iter(())
    elif sampler == OWN:
        proposed, taught = _propose(space, history, points, direction, seed_of_ask, previous)
    else:
        from trialfleet.optimizer.sampling.optuna_samplers import optuna_proposals

        asked = optuna_proposals(sampler, space, history, points, direction, seed_of_ask)
        proposed = itertools.islice(asked, SAMPLER_TRIES)
    untaken = next((point for point in proposed if _key(point) not in taken), None)
    return Suggestion(untaken or _untaken_design_point(space, taken, seed, len(history)), taught)


def in_startup(history: Sequence[FrozenTrial], startup_trials: int) -> bool:
    """Return whether the next point belongs to the start-up trials, which need no model.

    The first `startup_trials` trials are start-up trials. Further ones follow until
    `results_awaited(startup_trials)` trials have a measured or predicted result.
    """
    has_value = {TrialState.COMPLETE, TrialState.PRUNED}  # measured, or predicted
    complete = sum(trial.state in has_value and bool(trial.values) for trial in history)
    return len(history) < startup_trials or complete < results_awaited(startup_trials)


def _propose(
    space: SearchSpace,
    history: Sequence[FrozenTrial],
    points: Sequence[Point],
    direction: Direction,
    seed: int,
    previous: PreviousTasks | None,
) -> tuple[Iterator[Point], dict[str, float]]:
    import numpy as np

    from trialfleet.optimizer.sampling.gp.proposal import proposals

    domain = build_domain(space)
    known, tried, pending = [], [], []
    for trial, point in zip(history, points, strict=True):
        if trial.state == TrialState.RUNNING:
            pending.append(point)
        elif trial.state != TrialState.PRUNED or trial.values:
            known.append(trial)
            tried.append(point)
    values = np.array(losses([trial.value for trial in known], direction))
    rows, awaited = domain.encode(tried), domain.encode(pending)
    names, teachers = (previous and previous.find_teachers(space)) or ([], None)
    found, weights = proposals(domain, rows, values, awaited, seed, teachers)
    taught = dict(zip(names, weights, strict=True))
    proposed = (space.nearest(domain.decode(row)) for row in found)
    return proposed, {name: round(weight, 3) for name, weight in taught.items() if weight > 0}


def _untaken_design_point(space: SearchSpace, taken: set[Key], seed: int, begun: int) -> Point:
    """Return the next point of the Sobol sequence that is not in `taken`.

    The search starts at the place of the next trial, after `begun` trials, and tries DESIGN_TRIES
    points of the sequence. Then it tries all points of the space, if there are at most ENUMERABLE.
    If all these points are taken, the result is the first point that was tried.
    """
    design = _design_points(space, seed, begun - 1)  # the first trial has the defaults
    first = next(design)
    size = space.size()
    every = _all_points(space) if size is not None and size <= ENUMERABLE else iter(())
    unseen = (x for x in itertools.chain([first], design, every) if _key(x) not in taken)
    return next(unseen, first)


def _design_points(space: SearchSpace, seed: int, skip: int) -> Iterator[Point]:
    """Yield DESIGN_TRIES points of a scrambled Sobol sequence, after its first `skip` points."""
    from scipy.stats.qmc import Sobol

    domain = build_domain(space)
    sequence = Sobol(domain.size, scramble=True, seed=stable_seed(seed, "design"))
    enough = math.ceil(math.log2(skip + DESIGN_TRIES))  # scipy wants a power of two
    rows = sequence.random_base2(enough)[skip : skip + DESIGN_TRIES]
    return (space.nearest(domain.decode(row)) for row in domain.spread(rows))


def _all_points(space: SearchSpace) -> Iterator[Point]:
    grids = [[entry.nth(i) for i in range(entry.count or 0)] for entry in space.parameters.values()]
    for combination in itertools.product(*grids):
        yield space.canonical(dict(zip(space.parameters, combination, strict=True)))


def _key(point: Point) -> Key:
    """Return a hashable form of a point, in which `true` differs from 1, unlike in Python."""
    return tuple((type(value), value) for value in point.values())
