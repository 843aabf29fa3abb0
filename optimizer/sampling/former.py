"""What former runs found, of this region and of others: start-up points, and teachers of the model.

Former trials are read once, before a run begins, and never change: a suggestion stays a pure
function of what is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trialfleet.optimizer.sampling.gp.domain import Domain
    from trialfleet.optimizer.sampling.gp.posterior import Posterior
    from trialfleet.optimizer.sampling.gp.transfer import Teachers
    from trialfleet.optimizer.space import Scalar, SearchSpace

OWN_BEST = 3  # settings of the same region that are run again: data change from day to day
_KEPT = 1024  # models of tasks, some 40 kB each


@dataclass(frozen=True, eq=False)
class FormerTask:
    """The results of one region in a former run.

    Attributes:
        name: of the study in its storage, for people.
        is_own: whether it is the region itself that is to be tuned.
        points: the parameters of complete trials.
        losses: what came of each, smaller being better.
    """

    name: str
    is_own: bool
    points: tuple[dict[str, Scalar], ...]
    losses: tuple[float, ...]


def domain_of(space: SearchSpace) -> Domain:
    """Return a search space as the model sees it."""
    from trialfleet.optimizer.sampling.gp.domain import Domain

    return Domain(space.distributions(), space.conditions(), space.defaults())


def teachers_of(space: SearchSpace, tasks: Sequence[FormerTask]) -> Teachers | None:
    """Return the models of tasks that have anything to say of a space; None if none has."""
    from trialfleet.optimizer.sampling.gp.transfer import Teachers

    key = space.model_dump_json()
    known = [model for task in tasks if (model := _model(key, task)) is not None]
    return Teachers(known) if known else None


def startup_points(
    space: SearchSpace, tasks: Sequence[FormerTask], count: int
) -> Iterator[dict[str, Scalar]]:
    """Yield points that did well: the region's own best ones, then a portfolio of all tasks'."""
    for task in (task for task in tasks if task.is_own):
        order = sorted(range(len(task.losses)), key=lambda i: task.losses[i])
        usable = (_usable(space, task.points[i]) for i in order)
        yield from [point for point in usable if point is not None][:OWN_BEST]
    teachers = teachers_of(space, tasks)
    if teachers:
        domain = domain_of(space)
        for row in teachers.portfolio(count):
            yield nearest(space, domain.decode(row))


def nearest(space: SearchSpace, found: dict[str, Any]) -> dict[str, Scalar]:
    """Return the canonical point of a space whose values are nearest to those of the model."""
    entries = space.parameters.items()
    return space.canonical({name: entry.nearest(found[name]) for name, entry in entries})


def _usable(space: SearchSpace, point: dict[str, Scalar]) -> dict[str, Scalar] | None:
    """A former point in today's space; None where a value lies outside of it.

    A parameter that it doesn't have is at its default, one that today's space doesn't have is left
    out: what both spaces have in common counts.
    """
    entries = space.parameters
    values = {
        name: entries[name].resolve(value) for name, value in point.items() if name in entries
    }
    if not values or None in values.values():
        return None
    return space.canonical({name: value for name, value in values.items() if value is not None})


@lru_cache(maxsize=_KEPT)
def _model(space_as_json: str, task: FormerTask) -> Posterior | None:
    """The model of a task's results in a space; None where fewer than two are in it."""
    import numpy as np

    from trialfleet.optimizer.sampling.gp.proposal import teacher
    from trialfleet.optimizer.space import SearchSpace

    space = SearchSpace.model_validate_json(space_as_json)
    domain = domain_of(space)
    rows, losses = [], []
    for point, loss in zip(task.points, task.losses, strict=True):
        usable = _usable(space, point)
        if usable is not None:
            rows.append(domain.encode(usable))
            losses.append(loss)
    if len(rows) < 2:
        return None
    return teacher(domain, np.array(rows), np.array(losses))
