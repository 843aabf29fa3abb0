"""The money that counts against a budget, because it is spent or reserved.

optimizer/budget_and_deadline_rules.py decides by these amounts, in USD, whether trials may start:

    b     the budget
    c_i   cost of an ended trial (with all its attempts), full training or gate
    a_j   cost so far of a trial or full training under way
    e, f  probable costs of one trial and of one full training

    spent    = Σ c_i
    reserved = Σ max(a_j, e) over the trials under way
             + Σ max(a_j, f) over the full trainings under way
             + f for each full training to come

Another trial may start while spent + reserved + e ≤ b and spent < b. Full trainings always run, so
the money for those to come is reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from trialfleet.optimizer.budget_and_deadline_rules import UsdBudget


@dataclass(frozen=True, kw_only=True)
class Expected:
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
        full_is_over: whether no full training runs or will run.
        others: the cost of the gate, and of jobs' time between trials.
    """

    trials: tuple[float, ...] = ()
    under_way: tuple[float, ...] = ()
    full: float | None = None
    full_is_over: bool = False
    others: float = 0.0

    @property
    def spent(self) -> float:
        """The cost of the ended jobs, including `others`."""
        over = self.full or 0.0 if self.full_is_over else 0.0
        return sum(self.trials) + over + self.others

    def as_if_ended(self) -> Spending:
        """Return the spending as if all jobs under way had ended now, at their cost so far."""
        trials = (*self.trials, *self.under_way)
        return replace(self, trials=trials, under_way=(), full_is_over=True)

    def reserved(self, expected: Expected) -> float:
        """Return the expected cost of jobs under way and of the full training to come."""
        full = 0.0 if self.full_is_over else max(self.full or 0.0, expected.full)
        return full + sum(max(so_far, expected.trial) for so_far in self.under_way)


def expected_costs(spendings: Iterable[Spending], before: Expected | None = None) -> Expected:
    """Return the mean costs of ended trials and of ended full trainings.

    `before` has the means from previous runs, which are used until a trial or a full training has
    ended. Without `before`, the expected cost of a trial is 0 until a trial has ended. (A running
    trial counts with the larger of its cost so far and the expected cost.) Until a full training
    has ended, it is expected to cost at least as much as a trial.
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
    """Return a budget with the amounts that the regions spent and reserved.

    `name` is the budget's name, and `usd` is its limit.
    """
    return UsdBudget(
        name=name,
        usd=usd,
        spent=sum(each.spent for each in spendings),
        reserved=sum(each.reserved(expected) for each in spendings),
        trial=expected.trial,
    )
