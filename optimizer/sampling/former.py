"""What former runs found, of this region and of others: start-up points, and teachers of the model.

Former trials are read once, before a run begins, and never change: a suggestion stays a pure
function of what is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.errors import TrialfleetError
from trialfleet.files import read_json

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
        name: of its study in the storage: STUDY/RUN/REGION.
        region: its name.
        points: the parameters of complete trials.
        losses: what came of each, smaller being better.
    """

    name: str
    region: str
    points: tuple[dict[str, Scalar], ...]
    losses: tuple[float, ...]


def former_as_text(tasks: Iterable[FormerTask]) -> str:
    """Return tasks as the JSON that `read_former` reads."""
    return json.dumps({"schema": 1, "tasks": [asdict(task) for task in tasks]}) + "\n"


def read_former(path: Path) -> tuple[FormerTask, ...]:
    """Return the tasks of a file; none where there is no file.

    Raises:
        TrialfleetError: the file isn't what `former_as_text` wrote.
    """
    if not path.exists():
        return ()
    try:
        return tuple(
            FormerTask(x["name"], x["region"], tuple(x["points"]), tuple(map(float, x["losses"])))
            for x in read_json(path)["tasks"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TrialfleetError(f"{path} was damaged: {error!r}; plan the run anew") from error


@dataclass(frozen=True)
class FormerTasks:
    """What a region may learn from.

    Attributes:
        tasks: of all regions, in an order that stays.
        region: the one that is tuned; its own former task, if there is one, is among them.
    """

    tasks: tuple[FormerTask, ...]
    region: str

    def known(self, space: SearchSpace) -> tuple[list[str], Teachers] | None:
        """Return the tasks that have anything to say of a space: names, models; None if none."""
        from trialfleet.optimizer.sampling.gp.transfer import Teachers

        key = space.model_dump_json()
        found = {task.name: model for task in self.tasks if (model := _model(key, task))}
        return (list(found), Teachers(list(found.values()))) if found else None

    def startup_points(self, space: SearchSpace, count: int) -> Iterator[dict[str, Scalar]]:
        """Yield points that did well: the region's own best, then `count` that suit all tasks."""
        for task in (task for task in self.tasks if task.region == self.region):
            order = sorted(range(len(task.losses)), key=task.losses.__getitem__)
            usable = (usable_point(space, task.points[place]) for place in order)
            yield from [point for point in usable if point is not None][:OWN_BEST]
        if known := self.known(space):
            domain = domain_of(space)
            for row in known[1].portfolio(count):
                yield nearest_point(space, domain.decode(row))


def domain_of(space: SearchSpace) -> Domain:
    """Return a search space as the model sees it."""
    from trialfleet.optimizer.sampling.gp.domain import Domain

    return Domain(space.distributions(), space.conditions(), space.defaults())


def nearest_point(space: SearchSpace, found: dict[str, Any]) -> dict[str, Scalar]:
    """Return the canonical point of a space whose values are nearest to those of the model."""
    entries = space.parameters.items()
    return space.canonical({name: entry.nearest(found[name]) for name, entry in entries})


def usable_point(space: SearchSpace, point: dict[str, Scalar]) -> dict[str, Scalar] | None:
    """Return a former point in today's space; None where a value lies outside of it.

    A parameter that it doesn't have is at its default, one that today's space doesn't have is left
    out: what both spaces have in common counts.
    """
    entries = space.parameters
    common = {name: entries[name].resolve(point[name]) for name in point if name in entries}
    values = {name: value for name, value in common.items() if value is not None}
    return space.canonical(values) if values and len(values) == len(common) else None


@lru_cache(maxsize=_KEPT)
def _model(space_as_json: str, task: FormerTask) -> Posterior | None:
    """The model of a task's results in a space; None where fewer than two are in it."""
    import numpy as np

    from trialfleet.optimizer.sampling.gp.proposal import teacher
    from trialfleet.optimizer.space import SearchSpace

    space = SearchSpace.model_validate_json(space_as_json)
    domain = domain_of(space)
    known = [
        (usable, loss)
        for point, loss in zip(task.points, task.losses, strict=True)
        if (usable := usable_point(space, point))
    ]
    if len(known) < 2:
        return None
    rows = domain.encode([point for point, _ in known])
    return teacher(domain, rows, np.array([loss for _, loss in known]))
