"""Runs of one optimiser (rival) on one problem."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from tests.bench.optimizer.runs import followed
from tests.bench.optimizer.suites.problems import problem
from tests.bench.optimizer.suites.rivals import ENTRANTS
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.space import SearchSpace

Place = tuple[str, int]  # a function and an instance


@dataclass(frozen=True, kw_only=True)
class Run:
    """The run of one rival on one problem.

    Attributes:
        rival: name of the rival.
        suite: suite of the problem.
        function: function of the suite.
        instance: instance of the function.
        noisy: True if the rival's results had noise.
        parallel: number of pending trials.
        regrets: of the best point after each trial, without noise.
        seconds: duration of each ask.
    """

    rival: str
    suite: str
    function: str
    instance: int
    noisy: bool
    parallel: int
    regrets: list[float]
    seconds: list[float]

    @property
    def place(self) -> Place:
        """Return the key of the problem, by which the runs of all optimisers are paired."""
        return self.function, self.instance


def run(
    rival: str, suite: str, function: str, instance: int, noisy: bool, trials: int, parallel: int
) -> Run:
    """Let one rival optimize one problem."""
    warnings.simplefilter("ignore")
    given = problem(suite, function, instance, noisy=noisy)
    seed = stable_seed(instance, f"{suite} {function}")
    space = SearchSpace.model_validate(given.space)
    result = followed(given, ENTRANTS[rival].made(space, seed, trials), trials, parallel, seed)
    return Run(
        rival=rival,
        suite=suite,
        function=function,
        instance=instance,
        noisy=noisy,
        parallel=parallel,
        regrets=result.regrets,
        seconds=[round(seconds, 4) for seconds in result.seconds],
    )
