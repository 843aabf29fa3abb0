"""The use of earlier runs' results: good points for start-up trials, and models ("teachers").

The runs may belong to other studies. The results are read once, before a run begins, and never
change. So the next parameters remain a pure function of the run's trials.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import TrialfleetError
from trialfleet.files import read_json

if TYPE_CHECKING:
    from trialfleet.optimizer.sampling.gp.domain import Domain
    from trialfleet.optimizer.sampling.gp.kernel import Hyperparameters
    from trialfleet.optimizer.sampling.gp.posterior import Posterior
    from trialfleet.optimizer.sampling.gp.transfer import Teachers
    from trialfleet.optimizer.space import Scalar, SearchSpace

OWN_BEST = 3  # the same region's best settings, which are run again: data change from day to day
_KEPT = 1024  # cached models of tasks, about 40 kB each; a new one takes 3 ms with a known fit

# by search space and task: each is under 1 kB, and a fit takes 60 ms
_fits: dict[tuple[str, PreviousTask], Hyperparameters] = {}


@dataclass(frozen=True, eq=False)
class PreviousTask:
    """The results of one region in an earlier run: parameters and losses of its complete trials."""

    name: str  # of its study in the storage: STUDY/RUN/REGION
    region: str
    points: tuple[dict[str, Scalar], ...]
    losses: tuple[float, ...]  # smaller is better


def previous_as_text(tasks: Iterable[PreviousTask]) -> str:
    """Return `tasks` as the JSON that `read_previous` reads."""
    return json.dumps({"schema": 1, "tasks": [asdict(task) for task in tasks]}) + "\n"


def read_previous(path: Path) -> tuple[PreviousTask, ...]:
    """Return the tasks in a file, or () if it is missing. TrialfleetError if it is damaged."""
    if not path.exists():
        return ()
    try:
        return tuple(
            PreviousTask(x["name"], x["region"], tuple(x["points"]), tuple(map(float, x["losses"])))
            for x in read_json(path)["tasks"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TrialfleetError(f"{path} is damaged: {error!r}; plan the run again") from error


@dataclass(frozen=True)
class PreviousTasks:
    """The results of all regions in earlier runs, from which `region` learns in this run."""

    tasks: tuple[PreviousTask, ...]
    region: str

    def find_teachers(self, space: SearchSpace) -> tuple[list[str], Teachers] | None:
        """Return the names and the models of the tasks, or None if no task is usable.

        A task is usable if at least two of its points are possible in `space`.
        """
        from trialfleet.optimizer.sampling.gp.transfer import Teachers

        # without constants, in which regions often differ
        key = type(space).model_validate(dict(space.parameters)).model_dump_json()
        found = {task.name: model for task in self.tasks if (model := _model(key, task))}
        return (list(found), Teachers(list(found.values()))) if found else None

    def startup_points(self, space: SearchSpace, count: int) -> Iterator[dict[str, Scalar]]:
        """Yield points for start-up trials, first this region's best points in earlier runs.

        Then yield at most `count` points that together suit all tasks (`Teachers.portfolio`).
        """
        for task in (task for task in self.tasks if task.region == self.region):
            order = sorted(range(len(task.losses)), key=task.losses.__getitem__)
            usable = (usable_point(space, task.points[place]) for place in order)
            yield from [point for point in usable if point is not None][:OWN_BEST]
        if known := self.find_teachers(space):
            domain = build_domain(space)
            for row in known[1].portfolio(count):
                yield space.nearest(domain.decode(row))


def build_domain(space: SearchSpace) -> Domain:
    """Return the search space in the form that the Gaussian process uses."""
    from trialfleet.optimizer.sampling.gp.domain import Domain

    return Domain(space.distributions(), space.conditions(), space.defaults())


def usable_point(space: SearchSpace, point: dict[str, Scalar]) -> dict[str, Scalar] | None:
    """Convert a `point` of an earlier run to the present `space`, or return None.

    A parameter that `point` lacks gets its default. A parameter that `space` lacks is dropped. The
    result is None if a value is not possible in `space`, or if `space` has none of the parameters.
    """
    entries = space.parameters
    common = {name: entries[name].resolve(point[name]) for name in point if name in entries}
    values = {name: value for name, value in common.items() if value is not None}
    return space.canonical(values) if values and len(values) == len(common) else None


@lru_cache(maxsize=_KEPT)
def _model(space_as_json: str, task: PreviousTask) -> Posterior | None:
    """Return a task's model, or None if fewer than two of its points are possible in the space."""
    import numpy as np

    from trialfleet.optimizer.sampling.gp.fitting import fit_teacher
    from trialfleet.optimizer.sampling.gp.posterior import Posterior
    from trialfleet.optimizer.sampling.gp.standardized_results import standardize
    from trialfleet.optimizer.space import SearchSpace

    space = SearchSpace.model_validate_json(space_as_json)
    domain = build_domain(space)
    points = [usable_point(space, point) for point in task.points]
    known = [(x, loss) for x, loss in zip(points, task.losses, strict=True) if x]
    if len(known) < 2:
        return None
    rows = domain.encode([point for point, _ in known])
    values = standardize(np.array([loss for _, loss in known]))
    key = space_as_json, task
    if key not in _fits:
        _fits[key] = fit_teacher(rows, values, domain.is_categorical)
    return Posterior(rows, values, domain.is_categorical, _fits[key])
