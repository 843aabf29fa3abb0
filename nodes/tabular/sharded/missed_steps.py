"""The optimiser's steps that rows of an embedding table missed, because they had no gradient.

A row takes its missed steps later, all at once, when it is needed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trialfleet.nodes.tabular.loader import send
from trialfleet.nodes.tabular.optimizers import BETA_1, BETA_2, EPSILON
from trialfleet.nodes.tabular.settings import Settings

_ADAMW_STEPS = 216  # J of `MissedSteps`
_TERMS = 7  # terms of AdamW's series
_LATE = 1000  # the series is used for rows that were last updated in this step or later
_LOST = 1e-10  # the share of the momentum's effect that is neglected


# How `MissedSteps` works. optimizers.py explains the symbols w, m, v, lr.
#
# A row without a gradient still changes: in each step the moments m and v decay by a factor, and
# the weight w changes by m and by its own decay. Let Q(s) be Π (1 - lr decay) over the steps
# after s. For a row that was last updated in step s, k steps ago:
#
# SGD is linear: w ← Q(s) w - B(s) m, m ← momentumᵏ m, with
#     B(s) = Σ lr Q(u) momentumᵘ⁻ˢ over the steps u after s.
# The sum is cut off after h steps, where momentumʰ = 1e-10. The rest, about 1e-10 of B,
# is neglected.
#
# AdamW's m / √v decays by r = β₁ / √β₂ per step, and |m| / √v is at most 7.3 (Cauchy
# and Schwarz). So all steps after the J-th together change w by less than 7.3 rᴶ r / (1 - r)
# times the largest lr. With J = 216 that is 1e-8 lr, below the resolution of float32 for a weight
# of 0.1 with lr = 0.1, so these steps are neglected. The limit of 7.3 holds after every step, so
# a row may be brought up to date at any time. With v as of step s, a later step u divides m by
#     √v c d + ε,  c = 1 / √(1 - β₂ˢ),  d = √(β₂ᵘ⁻ˢ (1 - β₂ˢ) / (1 - β₂ᵘ)) ≤ 1
# and 1 / (√v c d + ε) is Σ yᵖ (1 - d)ᵖ / (√v c + ε) with y = √v c / (√v c + ε) ≤ 1. Hence, for
# any v,
#     w ← Q(s) w - m / (√v c + ε) Σ yᵖ S(s, p)
#     S(s, p) = Σ lr Q(u) β₁ᵘ⁻ˢ / (1 - β₁ᵘ) (1 - d)ᵖ over the steps u after s
# From s = 1000 on, 1 - d is below 0.0008 (u - s), and seven terms of the series (p from 0 to 6)
# are enough for an error below 1e-9 lr. A row that was last updated before step 1000 takes its
# missed steps one by one, at most J of them.
#
# Q, B and S are stored for each s in float64. A new step only changes the last h or J values.


class MissedSteps:
    """Counts the optimiser's steps, and updates rows by the steps that they have missed.

    The comment above this class defines the symbols B, S, Q, J and h.

    `rate_at` returns the learning rate of a step. Steps count from 1. In private methods, `places`
    [n] has the last step that each row has taken, counted from the last `begin`.
    """

    def __init__(self, chosen: Settings, rate_at: Callable[[int], float]) -> None:
        self._rate_at = rate_at
        self._is_adamw = chosen.optimizer == "adamw"
        self._decay = chosen.weight_decay
        # Round the factors to float32, as in other steps, because rounding errors add up.
        self._fall = (
            1 - _round_to_float32(1 - BETA_1)
            if self._is_adamw
            else _round_to_float32(chosen.momentum)
        )
        self._fall_2 = _round_to_float32(BETA_2)
        self._terms = _TERMS if self._is_adamw else 1
        self._window = _window_length(chosen)
        missed = torch.arange(self._window, 0, -1, dtype=torch.float64)
        self._falls, self._falls_2 = self._fall**missed, self._fall_2**missed
        self.begin(0)

    def begin(self, done: int) -> None:
        """Restart the count at step `done`. Every row must have taken all steps up to it."""
        self._base = self.done = done
        size = 1024  # steps; grows as needed
        self._rates = torch.zeros(size, dtype=torch.float64)
        # Cumulative sums of log2 |1 - lr decay|, and of the number of negative factors.
        self._logs = torch.zeros(size, dtype=torch.float64)
        self._flips = torch.zeros(size, dtype=torch.float64)
        self._ways = torch.zeros(self._terms, size, dtype=torch.float64)  # B or S

    def count(self) -> None:
        """Count one more step of the optimiser."""
        self.done += 1
        step, now = self.done, self.done - self._base
        if now == len(self._rates):  # double the size
            self._rates, self._logs, self._flips, self._ways = (
                torch.cat([each, torch.zeros_like(each)], -1)
                for each in (self._rates, self._logs, self._flips, self._ways)
            )
        rate = self._rate_at(step)
        kept = _round_to_float32(1 - rate * self._decay)
        self._rates[now] = rate
        if self._decay:
            self._logs[now] = self._logs[now - 1] + math.log2(max(abs(kept), 1e-300))
            self._flips[now] = self._flips[now - 1] + (kept < 0)
        if not self._window:
            return
        first = max(0, now - self._window)
        falls = self._falls[first - now :]
        ways = self._ways[:, first:now]
        if self._is_adamw:
            since = torch.arange(first, now, dtype=torch.float64) + self._base
            falls = falls / (1 - BETA_1**step)
            share = self._falls_2[first - now :] * (1 - BETA_2**since) / (1 - BETA_2**step)
            powers = torch.linalg.vander(1 - share.sqrt(), N=self._terms)
            ways.mul_(kept).add_(powers.T * (rate * falls))
        else:
            ways.mul_(kept).add_(rate * falls)

    def catch_up(self, numbers: Sequence[Tensor], since: Tensor) -> None:
        """Take the missed steps of rows, in place.

        `numbers` has the rows' weights, their moments m and, for AdamW, their moments v. Each is
        [n, e], on any device. `since` [n] int64, in main memory, has the last step that each row
        has taken.
        """
        places = since - self._base
        if bool((places == self.done - self._base).all()):
            return
        if not self._is_adamw:
            self._sgd(numbers, places)
            return
        early = since < _LATE
        for chosen, move in ((early, self._replay), (~early, self._apply_series)):
            rows = chosen.nonzero().flatten()
            if len(rows) == len(since):
                move(numbers, places)
            elif len(rows):
                there = send(rows, numbers[0].device)
                parts = [each[there] for each in numbers]
                move(parts, places[rows])
                for each, part in zip(numbers, parts, strict=True):
                    each.index_copy_(0, there, part)

    def _sgd(self, numbers: Sequence[Tensor], places: Tensor) -> None:
        w, m = numbers
        kept, fall, way = _columns([*self._decays(places)[:2], *self._decayed_terms(places)], w)
        w.mul_(kept).sub_(m * way)
        m.mul_(fall)

    def _apply_series(self, numbers: Sequence[Tensor], places: Tensor) -> None:
        w, m, v = numbers
        correction = (1 - BETA_2 ** (places + self._base).double()).rsqrt()
        factors = correction, *self._decays(places), *self._decayed_terms(places)
        c, kept, fall, fall_2, *ways, total = _columns(factors, w)
        root = v.sqrt() * c
        bottom = root + EPSILON
        y = root / bottom
        for way in reversed(ways):
            total = torch.addcmul(way, total, y)
        w.mul_(kept).addcdiv_(m * total, bottom, value=-1)
        m.mul_(fall)
        v.mul_(fall_2)

    def _replay(self, numbers: Sequence[Tensor], places: Tensor) -> None:
        """Take the missed steps one after another, each for all rows at once."""
        w, m, v = numbers
        moved = (m != 0).any(1).cpu()  # waits for the GPU, but then needs fewer short kernels
        steps = self._missed_count(places).long().clamp(max=self._window).where(moved, 0)
        order = steps.argsort(descending=True)
        order = order[: int((steps > 0).sum())]
        walking = send(order, w.device)
        parts = [each[walking] for each in (w, m, v)]
        # The number of rows that have at least 0, 1, 2, … missed steps.
        going = torch.bincount(steps[order]).flip(0).cumsum(0).flip(0)
        for step, count in enumerate(going.tolist()[1:], 1):
            self._step([part[:count] for part in parts], places[order[:count]] + step)
        for each, part in zip((w, m, v), parts, strict=True):
            each.index_copy_(0, walking, part)
        for each, left in zip((w, m, v), _columns(self._decays(places + steps), w), strict=True):
            each.mul_(left)

    def _step(self, numbers: Sequence[Tensor], places: Tensor) -> None:
        w, m, v = numbers
        t, rates = (places + self._base).double(), self._rates[places]
        factors = 1 - rates * self._decay, 1 / (1 - BETA_2**t), rates / (1 - BETA_1**t)
        kept, of_square, of_mean = _columns(factors, w)
        m.mul_(BETA_1)
        v.mul_(BETA_2)
        root = (v * of_square).sqrt_().add_(EPSILON)
        w.mul_(kept).sub_(m / root * of_mean)

    def _decays(self, places: Tensor) -> list[Tensor]:
        """Return the factors [n] by which missed steps scale weights, moments m and moments v."""
        missed = self._missed_count(places)
        return [self._kept_shares(places), self._fall**missed, self._fall_2**missed]

    def _decayed_terms(self, places: Tensor) -> Tensor:
        """Return the sums B (SGD) or S (AdamW) [terms, n] of all missed steps."""
        # The stored sums end after h or J steps. Later steps only multiply them by 1 - lr decay.
        ended = (places + self._window).clamp(max=self.done - self._base)
        return self._ways[:, places] * self._kept_shares(ended)

    def _kept_shares(self, places: Tensor) -> Tensor:
        """Return Q [n], the factors by which the decay in the missed steps scales weights."""
        if not self._decay:
            return torch.ones(len(places), dtype=torch.float64)
        # From sums of logarithms, because long products would underflow.
        now = self.done - self._base
        signs = 1 - 2 * ((self._flips[now] - self._flips[places]) % 2)
        return signs * (self._logs[now] - self._logs[places]).exp2()

    def _missed_count(self, places: Tensor) -> Tensor:
        return (self.done - self._base - places).double()


def _window_length(chosen: Settings) -> int:
    """Return for how many steps without a gradient m still changes a weight: J or h above."""
    if chosen.optimizer == "adamw":
        return _ADAMW_STEPS
    return math.ceil(math.log(_LOST) / math.log(chosen.momentum)) if chosen.momentum else 0


def _round_to_float32(factor: float) -> float:
    return float(torch.tensor(factor, dtype=torch.float32))


def _columns(factors: Sequence[Tensor], like: Tensor) -> tuple[Tensor, ...]:
    """Return each factor [n] as a column [n, 1], with the type and device of `like`."""
    together = torch.stack(list(factors)).to(like.dtype)  # so that one copy to a GPU suffices
    return send(together, like.device).unsqueeze(2).unbind()
