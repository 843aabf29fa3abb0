"""The amounts that count against a budget in USD, for `may_begin` to decide on a trial. Pure.

    b     the budget
    c_i   cost of a job that is over: of a trial with all its attempts, a full training, a gate
    a_j   what a job under way has cost so far
    e, f  what one trial, and one full training, will probably cost

    spent = Σ c_i
    bound = Σ max(a_j, e or f) over the jobs under way, and f for each full training to come

Another trial starts while spent + bound + e ≤ b, and spent < b. So jobs under way count with their
probable cost, and the full trainings, which always run, with the money reserved for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from trialfleet.optimizer.may_begin import UsdBudget


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected costs of jobs, in USD.

    Attributes:
        trial: e.
        full: f.
    """

    trial: float = 0.0
    full: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The spending of a region, in USD.

    Attributes:
        trials: c_i of each trial that is over.
        under_way: a_j of each asked trial without a result.
        full: of the full training so far; None before it began.
        full_is_over: it came to its end, or there will be none.
        others: of the gate, and of jobs between two of their trials.
    """

    trials: tuple[float, ...] = ()
    under_way: tuple[float, ...] = ()
    full: float | None = None
    full_is_over: bool = False
    others: float = 0.0

    @property
    def spent(self) -> float:
        """The cost of the jobs that are over."""
        over = self.full or 0.0 if self.full_is_over else 0.0
        return sum(self.trials) + over + self.others

    def ended(self) -> Spending:
        """Return the same without jobs under way: these have cost what they have."""
        trials = (*self.trials, *self.under_way)
        return replace(self, trials=trials, under_way=(), full_is_over=True)

    def bound(self, expected: Expected) -> float:
        """Return the expected cost of jobs under way and of the coming full training."""
        full = 0.0 if self.full_is_over else max(self.full or 0.0, expected.full)
        return full + sum(max(so_far, expected.trial) for so_far in self.under_way)


def expected_of(spendings: Iterable[Spending], before: Expected | None = None) -> Expected:
    """Return the expected costs of jobs: the means of those that are over.

    Args:
        spendings: of regions, those like the one asked for alone, or else all.
        before: expected costs by earlier runs, for those still unknown. If unknown, too, a full
            training costs at least a trial, and a trial nothing: until the first is over, only what
            was spent counts.
    """
    known = list(spendings)
    before = before or Expected()
    trials = [usd for each in known for usd in each.trials]
    fulls = [each.full for each in known if each.full_is_over and each.full]
    trial = fmean(trials) if trials else before.trial
    return Expected(trial=trial, full=fmean(fulls) if fulls else max(before.full, trial))


def usd_budget(
    name: str, usd: float, spendings: Sequence[Spending], expected: Expected
) -> UsdBudget:
    """Return a budget b with the amounts that count against it in its regions."""
    return UsdBudget(
        name=name,
        usd=usd,
        spent=sum(each.spent for each in spendings),
        reserved=sum(each.bound(expected) for each in spendings),
        trial=expected.trial,
    )
