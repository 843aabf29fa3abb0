"""Four ways to train the same network on the same rows: ours, and three that people write."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tests.bench.train.roofline import synchronize
from tests.bench.train.workloads import SEED, Workload
from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, loader, settings, train
from trialfleet.nodes.tabular.network import Network, loss_of
from trialfleet.nodes.tabular.optimizers import learning_rate_at
from trialfleet.nodes.tabular.ranks import Ranks

LOADERS = min(8, os.cpu_count() or 1)  # processes that feed a GPU; a CPU has other work for itself
NO_TRIAL = trial.Trial(Path("no-such-folder"), {"seed": SEED, "accelerator": "gpu"})


class Way(Protocol):
    """A way to train.

    Attributes:
        network: what it trains.
    """

    network: Network

    def advance(self, steps: int) -> None:
        """Take so many steps, and wait until they are done."""


def network_of(data: dataset.Dataset, workload: Workload, device: torch.device) -> Network:
    """Return the same network to each."""
    torch.manual_seed(SEED)
    return Network(data.columns, workload.settings).to(device)


class Ours:
    """The reference trainer."""

    def __init__(self, data: dataset.Dataset, workload: Workload, device: torch.device) -> None:
        chosen, team = workload.settings, Ranks()
        here = loader.place(data, device, 1.0)
        self.network = network_of(data, workload, device)
        self._steps = train.steps_of(NO_TRIAL, chosen, self.network, here, team, device)
        self._per_epoch, self._taken = workload.steps, 0

    def advance(self, steps: int) -> None:
        """See `Way`."""
        for _ in range(steps):
            epoch, step = divmod(self._taken, self._per_epoch)
            if step == 0:
                self._steps.begin(epoch, 0, 0.0)
            self._steps.take()
            self._taken += 1
        self._steps.loss_sum()


class Loop:
    """A DataLoader, autograd, torch.optim; on a GPU with loading processes and pinned memory."""

    def __init__(self, data: dataset.Dataset, workload: Workload, device: torch.device) -> None:
        self.network = network_of(data, workload, device)
        self._device, self._kind, self._settings = device, data.kind, workload.settings
        gpu = device.type == "cuda"
        self._loader: DataLoader[Any] = DataLoader(
            TensorDataset(*data.train.tensors),
            batch_size=workload.batch,
            shuffle=True,
            num_workers=LOADERS if gpu else 0,
            pin_memory=gpu,
        )
        self._optimizer = adamw_of(self.network, workload)
        self._steps, self._taken, self._per_epoch = self._forever(), 0, workload.steps

    def advance(self, steps: int) -> None:
        """See `Way`."""
        for _ in range(steps):
            next(self._steps)
        synchronize(self._device)

    def _forever(self) -> Iterator[None]:
        while True:
            for batch in self._loader:
                numeric, categorical, target = (
                    tensor.to(self._device, non_blocking=True) for tensor in batch
                )
                self._optimizer.zero_grad()
                with autocast(self._device):
                    outputs = self.network(numeric, categorical)
                    loss = loss_of(outputs, target, self._kind)
                loss.backward()  # type: ignore[no-untyped-call]
                epochs = self._taken / self._per_epoch
                for group in self._optimizer.param_groups:
                    group["lr"] = learning_rate_at(epochs, self._settings)
                self._optimizer.step()
                self._taken += 1
                yield


class Eager:
    """Rows that lie on the device, taken by index_select; autograd, torch.optim's fused AdamW."""

    def __init__(self, data: dataset.Dataset, workload: Workload, device: torch.device) -> None:
        self.network = network_of(data, workload, device)
        self._rows, self._settings, self._device = data.train.to(device), workload.settings, device
        self._batch, self._per_epoch, self._taken = workload.batch, workload.steps, 0
        self._optimizer, self._kind = adamw_of(self.network, workload), data.kind

    def advance(self, steps: int) -> None:
        """See `Way`."""
        for _ in range(steps):
            epoch, step = divmod(self._taken, self._per_epoch)
            if step == 0:
                self._order = loader.order_of(SEED, epoch, len(self._rows)).to(self._device)
            self._step(self._order[step * self._batch : (step + 1) * self._batch])
            self._taken += 1
        synchronize(self._device)

    def _step(self, index: Tensor) -> None:
        self._optimizer.zero_grad()
        self._loss(index).backward()  # type: ignore[no-untyped-call]
        rate = learning_rate_at(self._taken / self._per_epoch, self._settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()

    def _loss(self, index: Tensor) -> Tensor:
        batch = self._rows.at(index)
        with autocast(self._device):
            return loss_of(self.network(batch.numeric, batch.categorical), batch.target, self._kind)


class Compiled(Eager):
    """The same, but batch, network and loss by torch.compile(mode="reduce-overhead")."""

    def __init__(self, data: dataset.Dataset, workload: Workload, device: torch.device) -> None:
        super().__init__(data, workload, device)
        self._compiled: Callable[[Tensor], Tensor] = torch.compile(
            super()._loss, mode="reduce-overhead"
        )

    def _loss(self, index: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return self._compiled(index)


def adamw_of(network: Network, workload: Workload) -> torch.optim.Optimizer:
    """Return torch's own fastest AdamW, biases without decay."""
    groups: list[dict[str, Any]] = [
        {"params": [w for w in network.parameters() if w.ndim > 1]},
        {"params": [w for w in network.parameters() if w.ndim == 1], "weight_decay": 0.0},
    ]
    chosen = workload.settings
    return torch.optim.AdamW(
        groups, lr=chosen.learning_rate, weight_decay=chosen.weight_decay, fused=True
    )


def autocast(device: torch.device) -> Any:
    """Return bfloat16 where our trainer has it, and nothing elsewhere."""
    dtype = train.precision_of(settings.Settings(), device) if device.type == "cuda" else None
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


WAYS: dict[str, Callable[[dataset.Dataset, Workload, torch.device], Way]] = {
    "ours": Ours,
    "loop": Loop,
    "compiled": Compiled,
    "eager": Eager,
}


def prepare(device: torch.device) -> None:
    """Set for the process what a trial on a GPU sets, but for what would only slow the others."""
    if device.type == "cuda":
        train.choose_device(NO_TRIAL, Ranks())
        torch.use_deterministic_algorithms(mode=False)  # our kernels are so by themselves


def quiet() -> None:
    """What torch.compile imports warns of itself; that is not the reader's business."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=UserWarning)
