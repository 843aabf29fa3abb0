"""The next point to try, as a pure function of what is known.

Nothing is kept between two calls: the same space, history and seed give the same suggestion in
any process. That makes a suggestion safe to compute ahead, to throw away and to repeat after a
crash. A call costs what Optuna's Gaussian process costs, 0.2 to 0.5 s for 10 to 200 trials.

How a history becomes what the sampler is told:

COMPLETE   its value
FAIL       the worst value seen: the sampler ignores failed trials and proposes their point again
PRUNED     nothing: it was given up through no fault of its parameters
RUNNING    pending: qLogEI (https://arxiv.org/abs/2310.20708, eq. 10) integrates over its outcome
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from trialfleet.optimizer.seeds import stable_seed
from trialfleet.optimizer.startup import results_awaited

if TYPE_CHECKING:
    from trialfleet.optimizer.space import Scalar, SearchSpace

Direction = Literal["minimize", "maximize"]
Point = dict[str, "Scalar"]
Key = tuple[tuple[type, "Scalar"], ...]

MODEL_TRIES = 3  # asks of the model for a point that isn't in the history
DESIGN_TRIES = 256  # points of the design looked at for one that isn't in the history
ENUMERABLE = 2000  # a space this small is searched to its last unseen point
HUGE = 1e100
COUNTABLE = 1000  # a parameter with more values is continuous to the model, then rounded

optuna.logging.set_verbosity(optuna.logging.WARNING)  # or each ask announces a study on stderr


def warm_up() -> None:
    """Import what the model needs (torch: seconds), so that no ask has to wait for it.

    Torch is left with one thread in this process: small matrices gain nothing from a second, and
    two that compete for cores with trials cost a factor.
    """
    import torch

    from trialfleet.optimizer.space import SearchSpace

    torch.set_num_threads(1)
    space = SearchSpace.model_validate({"x": {"type": "float", "low": 0, "high": 1}})
    state = TrialState.COMPLETE
    trials = [_as_trial(state, {"x": x}, x, space.distributions()) for x in (0.25, 0.75)]
    suggest(space, trials, direction="minimize", seed=0, startup_trials=1)


def suggest(
    space: SearchSpace,
    history: Sequence[FrozenTrial],
    *,
    direction: Direction,
    seed: int,
    startup_trials: int,
) -> Point:
    """Return the canonical point to try next.

    The first is the defaults. The start-up trials after it follow a scrambled Sobol sequence: it
    covers the space more evenly than random points and never repeats itself, whatever is pending.
    Then a Gaussian process proposes. A point of the history is proposed again only when the space
    has no other.

    Args:
        space: the search space.
        history: every trial asked so far, in order, with its active parameters.
        direction: whether a small or a large value is good.
        seed: of this study; the length of the history is mixed in.
        startup_trials: trials that don't follow the model, the defaults among them.
    """
    if not history:
        return space.canonical(space.defaults())
    points = [space.canonical(trial.params) for trial in history]
    taken = {_key(point) for point in points}
    if in_startup(history, startup_trials):
        return _unseen(space, taken, seed, skip=len(history) - 1)
    return _from_model(space, history, points, taken, direction, seed) or _unseen(
        space, taken, seed, skip=len(history) - 1
    )


def in_startup(history: Sequence[FrozenTrial], startup_trials: int) -> bool:
    """Return whether the next point comes from the design, not from the model.

    So many are asked from the design, finished or not; and the model waits for half of their
    results, since with many lanes the first results would otherwise steer all further trials.
    """
    complete = sum(trial.state == TrialState.COMPLETE for trial in history)
    return len(history) < startup_trials or complete < results_awaited(startup_trials)


def _from_model(
    space: SearchSpace,
    history: Sequence[FrozenTrial],
    points: Sequence[Point],
    taken: set[Key],
    direction: Direction,
    seed: int,
) -> Point | None:
    """Return what the Gaussian process proposes, None if it only repeats the history."""
    seen_by_model = _model_distributions(space)
    study = _study_of(history, points, seen_by_model, direction, stable_seed(seed, len(history)))
    for _ in range(MODEL_TRIES):
        proposed = study.ask(fixed_distributions=seen_by_model).params
        point = space.canonical(
            {name: entry.nearest(proposed[name]) for name, entry in space.parameters.items()}
        )
        if _key(point) not in taken:
            return point
        # pending, it promises nothing more to the next ask
        study.add_trial(_as_trial(TrialState.RUNNING, point, None, seen_by_model))
    return None


def _study_of(
    history: Sequence[FrozenTrial],
    points: Sequence[Point],
    seen_by_model: Mapping[str, BaseDistribution],
    direction: Direction,
    seed: int,
) -> optuna.Study:
    """Return a study in memory that tells the sampler the history."""
    values = [trial.value for trial in history if trial.value is not None]
    worst = max(values) if direction == "minimize" else min(values)
    # the sampler standardizes values, so their scale is free; squares of such ones overflow
    largest = max(map(abs, values))
    scale = 1.0 if largest < HUGE else largest
    sampler = optuna.samplers.GPSampler(
        seed=seed, n_startup_trials=1, warn_independent_sampling=False
    )
    study = optuna.create_study(direction=direction, sampler=sampler)
    for trial, point in zip(history, points, strict=True):
        if trial.state == TrialState.PRUNED:
            continue
        if trial.state == TrialState.RUNNING:
            study.add_trial(_as_trial(TrialState.RUNNING, point, None, seen_by_model))
        else:
            value = worst if trial.value is None else trial.value
            study.add_trial(_as_trial(TrialState.COMPLETE, point, value / scale, seen_by_model))
    return study


def _as_trial(
    state: TrialState,
    point: Point,
    value: float | None,
    distributions: Mapping[str, BaseDistribution],
) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=state, params=point, distributions=dict(distributions), value=value
    )


def _model_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return what the model sees: it lists every value of a discrete parameter in memory."""
    distributions = space.distributions()
    for name, entry in space.parameters.items():
        if entry.type != "categorical" and (entry.count or 0) > COUNTABLE:
            distributions[name] = FloatDistribution(entry.low, entry.high, log=entry.log)
    return distributions


def _unseen(space: SearchSpace, taken: set[Key], seed: int, *, skip: int) -> Point:
    """Return the first point of the design that isn't taken; a taken one if there is no other."""
    design = _design(space, seed, skip)
    first = next(design)
    size = space.size()
    every = _all_points(space) if size is not None and size <= ENUMERABLE else iter(())
    unseen = (x for x in itertools.chain([first], design, every) if _key(x) not in taken)
    return next(unseen, first)


def _design(space: SearchSpace, seed: int, skip: int) -> Iterator[Point]:
    """Yield points of the study's scrambled Sobol sequence, the first `skip` left out."""
    from scipy.stats.qmc import Sobol

    sequence = Sobol(len(space.parameters), scramble=True, seed=stable_seed(seed, "design"))
    enough = math.ceil(math.log2(skip + DESIGN_TRIES))  # scipy wants a power of two
    for row in sequence.random_base2(enough)[skip : skip + DESIGN_TRIES]:
        at = zip(space.parameters.items(), row.tolist(), strict=True)
        yield space.canonical({name: entry.at(u) for (name, entry), u in at})


def _all_points(space: SearchSpace) -> Iterator[Point]:
    grids = [[entry.nth(i) for i in range(entry.count or 0)] for entry in space.parameters.values()]
    for combination in itertools.product(*grids):
        yield space.canonical(dict(zip(space.parameters, combination, strict=True)))


def _key(point: Point) -> Key:
    """Return what tells two points apart: `true` is not 1, though Python says that they equal."""
    return tuple((type(value), value) for value in point.values())
