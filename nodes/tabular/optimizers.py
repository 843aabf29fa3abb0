"""AdamW, SGD with momentum, and the learning rate of each step, for the built-in trainer.

torch.optim is not used, because its first use imports torch._dynamo, which would cost every trial
70 MB of memory and 1.3 s. `Optimizer` takes the steps on a CPU and for sharded models. In
`graph_steps.py` a kernel takes them, with the learning rates from `build_schedule`.

    w    a weight              g   its gradient
    m    first moment: a moving average of g (AdamW); velocity (SGD)
    v    second moment: a moving average of g²
    t    number of the step, from 1
    lr   learning rate         decay   decoupled decay of the weight, 0 for biases

AdamW (Loshchilov and Hutter, 2019, algorithm 2):
    m ← β₁ m + (1 - β₁) g
    v ← β₂ v + (1 - β₂) g²
    w ← w (1 - lr decay) - lr m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + ε)
SGD:
    m ← momentum m + g
    w ← w (1 - lr decay) - lr m
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from trialfleet.nodes.tabular import settings

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Optimizer:
    """AdamW or SGD for the weights of one network."""

    def __init__(self, network: nn.Module, chosen: settings.Settings) -> None:
        self.settings = chosen
        self.weights: list[nn.Parameter] = list(network.parameters())
        # Biases, which have one dimension, don't decay.
        self.decays = [chosen.weight_decay if w.ndim > 1 else 0.0 for w in self.weights]
        self.steps = 0
        self.m = [torch.zeros_like(w) for w in self.weights]
        self.v = [torch.zeros_like(w) for w in self.weights]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update every weight that has a gradient."""
        self.steps += 1
        move = self._adamw_step if self.settings.optimizer == "adamw" else self._sgd
        for w, m, v, decay in zip(self.weights, self.m, self.v, self.decays, strict=True):
            if w.grad is not None:
                w.mul_(1 - learning_rate * decay)
                move(w, w.grad, m, v, learning_rate)

    def _adamw_step(self, w: Tensor, g: Tensor, m: Tensor, v: Tensor, learning_rate: float) -> None:
        m.lerp_(g, 1 - BETA_1)
        v.mul_(BETA_2).addcmul_(g, g, value=1 - BETA_2)
        root = (v / (1 - BETA_2**self.steps)).sqrt_().add_(EPSILON)
        w.addcdiv_(m, root, value=-learning_rate / (1 - BETA_1**self.steps))

    def _sgd(self, w: Tensor, g: Tensor, m: Tensor, _v: Tensor, learning_rate: float) -> None:
        m.mul_(self.settings.momentum).add_(g)
        w.add_(m, alpha=-learning_rate)

    def state(self) -> dict[str, Any]:
        """Return the state, from which another optimiser can continue."""
        return {"steps": self.steps, "m": self.m, "v": self.v}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which may come from another device."""
        self.steps = state["steps"]
        for mine, saved in zip([*self.m, *self.v], [*state["m"], *state["v"]], strict=True):
            mine.copy_(saved)


def cosine_learning_rate(epochs: float, chosen: settings.Settings) -> float:
    """Return the learning rate after `epochs` epochs, on a cosine that falls to 0."""
    done = epochs / chosen.epochs
    return chosen.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def build_schedule(epoch: int, steps: int, before: int, chosen: settings.Settings) -> Tensor:
    """Return the numbers that the kernels need for the steps of an epoch, [steps, 3] float32.

    The row of step t has lr, 1 / (1 - β₁ᵗ) and 1 / (1 - β₂ᵗ). `before` is the number of steps in
    all previous epochs, so the epoch's first step has t = before + 1. `epoch` counts from 0.
    """
    rates = [cosine_learning_rate(epoch + step / steps, chosen) for step in range(steps)]
    t = before + 1 + torch.arange(steps, dtype=torch.float64)
    columns = [torch.tensor(rates, dtype=torch.float64), 1 / (1 - BETA_1**t), 1 / (1 - BETA_2**t)]
    return torch.stack(columns, 1).float()
