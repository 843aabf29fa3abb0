"""What the optimiser does to rows that have no gradient for some steps.

AdamW and SGD with momentum move every row in every step: means decay, a weight follows its mean,
and decays itself. A row that lies in main memory meanwhile is caught up when it is wanted.

Notation as in optimizers.py; a row has missed k steps, of which the last is step t:

SGD is linear. With Q(s) = Π (1 - lr decay) over the steps after s, up to t,
    w ← Q(t - k) w - B(t - k) m        B(s) = momentum (lr Q(s + 1) + B(s + 1)), B(t) = 0
    m ← momentumᵏ m
AdamW is not, for ε and the bias's corrections. Its mean over the root of squares falls by
r = β₁ / √β₂ a step, so w has all but rᴶ of its way behind it after J steps: these are taken one by
one, and of the rest only decay is left. J is 220: what is left out moves w by less than 1e-8 of lr.

Shapes: n rows, e numbers of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if __package__ == "trialfleet.nodes.tabular.sharded":
    from trialfleet.nodes.tabular import settings
    from trialfleet.nodes.tabular.optimizers import BETA_1, BETA_2, EPSILON
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    import settings
    from optimizers import BETA_1, BETA_2, EPSILON

_RATIO = BETA_1 / math.sqrt(BETA_2)  # r
_STEPS = math.ceil(math.log(1e-10) / math.log(_RATIO))  # J
_STILL = 1e-11  # a row that all steps to come would move by less than ten times this stands still


class Coasting:
    """Steps without a gradient, for rows that were last moved at any step since `base`.

    Args:
        chosen: the optimiser's settings.
        rate_at: the learning rate of a step, numbered from 1.

    Attributes:
        done: steps taken so far.
    """

    def __init__(self, chosen: settings.Settings, rate_at: Callable[[int], float]) -> None:
        self._chosen, self._rate_at = chosen, rate_at
        self._is_adamw = chosen.optimizer == "adamw"
        self.begin(0)

    def begin(self, done: int) -> None:
        """Forget the steps so far: no row was last moved before the last of them."""
        self._base = self.done = done
        self._rates = torch.zeros(
            1, dtype=torch.float64
        )  # of each step, from base; the first: none
        self._kept = torch.ones(1, dtype=torch.float64)  # Q of each, from base
        self._moved = torch.zeros(1, dtype=torch.float64)  # B of each

    def advance(self, done: int) -> None:
        """Count the steps up to so many."""
        if done == self.done:
            return
        rates = torch.tensor(
            [self._rate_at(step) for step in range(self.done + 1, done + 1)], dtype=torch.float64
        )
        for rate in rates.tolist():
            share = 1 - rate * self._chosen.weight_decay
            self._kept = torch.cat([self._kept * share, torch.ones(1, dtype=torch.float64)])
            if not self._is_adamw:
                missed = torch.arange(len(self._moved), 0, -1, dtype=torch.float64)
                way = rate * self._chosen.momentum**missed
                self._moved = torch.cat([self._moved * share + way, way.new_zeros(1)])
        self._rates = torch.cat([self._rates, rates])
        self.done = done

    @torch.no_grad()
    def catch_up(self, w: Tensor, m: Tensor, v: Tensor, since: Tensor) -> None:
        """Take the missed steps of rows [n, e], in place.

        Args:
            w: weights.
            m: the optimiser's means.
            v: its means of squares; SGD has none.
            since: [n] int64, steps that each row has had; on the CPU.
        """
        places = since - self._base
        if not len(places) or int(places.min()) == len(self._rates) - 1:
            return
        if self._is_adamw:
            self._adamw(w, m, v, places)
        else:
            self._sgd(w, m, places)

    def _sgd(self, w: Tensor, m: Tensor, places: Tensor) -> None:
        missed = len(self._rates) - 1 - places
        w.mul_(_column(self._kept[places], w)).sub_(m * _column(self._moved[places], w))
        m.mul_(_column(self._chosen.momentum ** missed.double(), w))

    def _adamw(self, w: Tensor, m: Tensor, v: Tensor, places: Tensor) -> None:
        missed = len(self._rates) - 1 - places
        still = m.abs() <= (v.sqrt() + EPSILON) * (_STILL / self._chosen.learning_rate)
        steps = missed.clamp(max=_STEPS).where(~still.all(1).cpu(), 0)
        # The longest way first: in each step the rows that go on are the first ones.
        order = steps.argsort(descending=True)
        walking = order[: int((steps > 0).sum())].to(w.device)
        if len(walking):
            moved = w[walking], m[walking], v[walking]
            self._walk(*moved, steps[order], places[order])
            for all_rows, some in zip((w, m, v), moved, strict=True):
                all_rows[walking] = some
        rest = (missed - steps).double()
        m.mul_(_column(BETA_1**rest, w))
        v.mul_(_column(BETA_2**rest, w))
        if self._chosen.weight_decay:
            w.mul_(_column(self._kept[places + steps], w))

    def _walk(self, w: Tensor, m: Tensor, v: Tensor, steps: Tensor, places: Tensor) -> None:
        """Take so many steps of each row, of which the first rows take most."""
        going = torch.bincount(steps).flip(0).cumsum(0).flip(0)  # [most + 1] take so many or more
        places, rates = places.to(w.device), self._rates.to(w.device)
        for step, count in enumerate(going.tolist()[1:], 1):
            now = places[:count] + step
            t = (now + self._base).double()
            rate = rates[now]
            some_m, some_v, some_w = m[:count].mul_(BETA_1), v[:count].mul_(BETA_2), w[:count]
            if self._chosen.weight_decay:
                some_w.mul_(_column(1 - rate * self._chosen.weight_decay, w))
            root = (some_v * _column(1 / (1 - BETA_2**t), w)).sqrt_().add_(EPSILON)
            some_w.sub_(some_m / root * _column(rate / (1 - BETA_1**t), w))


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Return values [n] as [n, 1], of the type and on the device of what they multiply."""
    return values.to(like)[:, None]
