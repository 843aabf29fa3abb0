"""The money that counts against a budget, because it is spent or reserved.

optimizer/budget_and_deadline_rules.py decides by these amounts, in USD, whether trials may start:

    b     the budget
    c_i   cost of an ended trial (with all its attempts) or full training, of a gate, or of a job's
          time between trials
    a_j   cost so far of a trial or full training under way
    e, f  probable costs of one trial and of one full training

    spent    = Σ c_i
    reserved = Σ max(a_j, e) over the trials under way
             + Σ max(a_j, f) over the full trainings under way
             + f for each full training to come

Another trial may start while spent + reserved + e ≤ b and spent < b. A full training runs even if
it exceeds the budget, so its money is reserved from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from trialfleet.optimizer.budget_and_deadline_rules import UsdBudget


@dataclass(frozen=True, kw_only=True)
class ExpectedCosts:
    """The expected costs of a trial (e) and of a full training (f), in USD."""

    trial: float = 0.0
    full: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The spending of a region, in USD.

    Attributes:
        trials: the cost of each ended trial.
        under_way: the cost so far of each trial under way.
        full: the cost of the full training so far, or None before it begins.
        full_is_over: whether the region has ended, or needs no full training.
        others: the cost of the gate, and of jobs' time between trials.
    """

    trials: tuple[float, ...] = ()
    under_way: tuple[float, ...] = ()
    full: float | None = None
    full_is_over: bool = False
    others: float = 0.0

    @property
    def spent(self) -> float:
        """The cost of ended trials and of a full training that is over, and `others`."""
        over = self.full or 0.0 if self.full_is_over else 0.0
        return sum(self.trials) + over + self.others

    def as_if_ended(self) -> Spending:
        """Return the spending as if all jobs under way had ended now, at their cost so far."""
        trials = (*self.trials, *self.under_way)
        return replace(self, trials=trials, under_way=(), full_is_over=True)

    def reserved(self, expected: ExpectedCosts) -> float:
        """Return the expected cost of jobs under way and of the full training to come."""
        full = 0.0 if self.full_is_over else max(self.full or 0.0, expected.full)
        return full + sum(max(so_far, expected.trial) for so_far in self.under_way)


def expected_costs(
    spendings: Iterable[Spending], before: ExpectedCosts | None = None
) -> ExpectedCosts:
    """Return the mean costs of ended trials and of ended full trainings.

    Until a trial has ended, the mean of previous runs (`before`) is used, or 0 if it is unknown.
    Until a full training has ended, its mean of previous runs is used, but at least the mean of a
    trial.
    """
    known = list(spendings)
    before = before or ExpectedCosts()
    trials = [usd for each in known for usd in each.trials]
    fulls = [each.full for each in known if each.full_is_over and each.full]
    trial = fmean(trials) if trials else before.trial
    return ExpectedCosts(trial=trial, full=fmean(fulls) if fulls else max(before.full, trial))


def usd_budget(
    name: str, usd: float, spendings: Sequence[Spending], expected: ExpectedCosts
) -> UsdBudget:
    """Return a budget of `usd` USD with the amounts that the regions spent and reserved."""
    return UsdBudget(
        name=name,
        usd=usd,
        spent=sum(each.spent for each in spendings),
        reserved=sum(each.reserved(expected) for each in spendings),
        trial=expected.trial,
    )
