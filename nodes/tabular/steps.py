"""The interface `Steps` of training steps, and the steps for a CPU, with torch's own operations.

`graph_steps.py` has the steps for a GPU, and for the CPUs of a gang. Both use the same batches and
formulas. They save the same state, so that each can continue from the other's checkpoints.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from trialfleet.nodes.tabular import dataset, loader, settings
from trialfleet.nodes.tabular.network import Network, compute_loss
from trialfleet.nodes.tabular.optimizers import Optimizer, cosine_learning_rate


class Steps(Protocol):
    """The training steps of a network, which update its weights in place.

    Attributes:
        in_step: True if all ranks have the same weights now.
        is_sharded: True if each rank has only a part of the weights. Then all ranks must save
            together.
    """

    in_step: bool = True
    is_sharded: bool = False

    def begin(self, epoch: int, step: int, loss_sum: float) -> None:
        """Prepare for an epoch's steps from `step` on.

        `loss_sum` is the sum of the losses of the epoch's earlier steps.
        """

    def take(self) -> None:
        """Update the weights with the next batch of the epoch."""

    def loss_sum(self) -> float:
        """Wait for the device, and return the sum of the losses of the epoch's steps so far."""

    def state(self) -> dict[str, Any]:
        """Return the optimiser's state, without weights.

        If both this state and the weights are restored, training continues with the same bits.
        """

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `state()` has returned. Restore the weights first."""

    def full_state(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the whole network's weights, put together from the `weights` of each rank.

        Only rank 0 gets all weights.
        """
        return weights

    def part(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's part of `weights`, the weights of the whole network."""
        return weights

    def close(self) -> None:
        """Release resources that could block the end of the process. No step may follow."""


class PlainSteps(Steps):
    """Training steps with torch's own operations. `Steps` describes the methods."""

    def __init__(
        self, network: Network, data: dataset.Dataset, chosen: settings.Settings, seed: int
    ) -> None:
        self._network, self._data, self._settings, self._seed = network, data, chosen, seed
        self._optimizer = Optimizer(network, chosen)

    def begin(self, epoch: int, step: int, loss_sum: float) -> None:
        """Prepare for an epoch's steps from `step` on."""
        self._epoch, self._next = epoch, step
        order = loader.epoch_order(self._seed, epoch, len(self._data.train))
        self._batches = torch.split(order, self._settings.batch_size)
        self._loss_sum = torch.tensor(loss_sum, dtype=torch.float64)

    def take(self) -> None:
        """Update the weights with the next batch of the epoch."""
        batch = self._data.train.select(self._batches[self._next])
        self._network.zero_grad()
        outputs = self._network(batch.numeric, batch.categorical)
        loss = compute_loss(outputs, batch.target, self._data.kind)
        loss.backward()  # type: ignore[no-untyped-call]
        epochs = self._epoch + self._next / len(self._batches)
        self._optimizer.step(cosine_learning_rate(epochs, self._settings))
        self._loss_sum += loss.detach()
        self._next += 1

    def loss_sum(self) -> float:
        """Return the sum of the losses of the epoch's steps so far."""
        return self._loss_sum.item()

    def state(self) -> dict[str, Any]:
        """Return the optimiser's state, without weights."""
        return self._optimizer.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `state()` has returned."""
        self._optimizer.restore(state)

    def close(self) -> None:
        """Do nothing, because these steps have nothing to release."""
