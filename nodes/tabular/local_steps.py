"""Training steps that each rank takes by itself. Every few steps the ranks' weights are averaged.

This is for machines with a slow connection, where summing gradients takes longer than a step. The
method is DiLoCo (Douillard et al., 2023, arXiv 2311.08105, algorithm 1). Each rank trains on
its part of each batch. In a sync, all ranks get the same new weights. The outer optimiser, SGD with
Nesterov's momentum, computes them from the mean of the ranks' weights:

    w    a rank's weights        g   the weights after the last sync, the same on all ranks
    H    steps between syncs     u   velocity of the outer optimiser

    a sync, after every H steps and at the end of each epoch:
    d ← g - mean of all ranks' w
    u ← outer_momentum u + d
    g ← g - outer_learning_rate (d + outer_momentum u)
    w ← g

`outer_momentum` and `outer_learning_rate` are settings. As in the paper, each rank's own optimiser
keeps its moments m and v, which are not averaged. A checkpoint only has the moments of rank 0.
"""

from __future__ import annotations

from typing import Any

import torch

from trialfleet.nodes.tabular import settings
from trialfleet.nodes.tabular.graph_steps import GraphSteps
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.steps import Steps


class LocalSteps(Steps):
    """Training steps of this rank, and the averaging of all ranks' weights.

    `inner` takes the steps. `steps.Steps` describes the methods.
    """

    def __init__(
        self, inner: GraphSteps, chosen: settings.Settings, team: Ranks, steps_per_epoch: int
    ) -> None:
        self._inner, self._settings, self._team = inner, chosen, team
        self._steps_per_epoch = steps_per_epoch
        self.weights = inner.weights
        self._synced = [w.detach().clone() for w in self.weights]
        self._velocity = [torch.zeros_like(w) for w in self.weights]
        self._next = 0
        self.in_step = True

    def begin(self, epoch: int, step: int, loss_sum: float) -> None:
        """Prepare for an epoch's steps from `step` on."""
        self._next = step
        self._inner.begin(epoch, step, loss_sum)

    def take(self) -> None:
        """Update the weights with the next batch.

        After every `local_steps` steps, combine the weights of all ranks.
        """
        self._inner.take()
        self._next += 1
        is_last = self._next == self._steps_per_epoch
        self.in_step = is_last or self._next % self._settings.local_steps == 0
        if self.in_step:
            self._sync()

    @torch.no_grad()
    def _sync(self) -> None:
        moved = [synced - w for synced, w in zip(self._synced, self.weights, strict=True)]
        momentum, rate = self._settings.outer_momentum, self._settings.outer_learning_rate
        everything = zip(
            self.weights, self._synced, self._velocity, self._team.sums(moved), strict=True
        )
        for w, synced, velocity, total in everything:
            d = total / self._team.count
            velocity.mul_(momentum).add_(d)
            synced.sub_(d.add(velocity, alpha=momentum), alpha=rate)
            w.copy_(synced)
        self._inner.weights_moved()

    def loss_sum(self) -> float:
        """Return the sum of this rank's losses in the epoch's steps so far."""
        return self._inner.loss_sum()

    def state(self) -> dict[str, Any]:
        """Return the state of both optimisers. It is only valid while `in_step` is True."""
        return {**self._inner.state(), "velocity": self._velocity}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `state()` has returned. Restore the weights first."""
        self._inner.restore(state)
        for synced, w in zip(self._synced, self.weights, strict=True):
            synced.copy_(w)
        for velocity, saved in zip(self._velocity, state["velocity"], strict=True):
            velocity.copy_(saved)

    def close(self) -> None:
        """Release the resources of the inner steps."""
        self._inner.close()
