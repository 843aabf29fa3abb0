"""Ways to train the same network on the same rows: ours, and torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tests.bench.train.roofline import synchronize
from tests.bench.train.workloads import SEED, Workload
from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, loader, settings, train
from trialfleet.nodes.tabular.network import Network, compute_loss
from trialfleet.nodes.tabular.optimizers import build_schedule, cosine_learning_rate
from trialfleet.nodes.tabular.ranks import Ranks

WARM_UPS = 3  # steps before a capture
NO_TRIAL = trial.Trial(Path("no-such-folder"), {"seed": SEED, "accelerator": "gpu"})


class Way(Protocol):
    """A way to train.

    Attributes:
        network: the network that it trains.
    """

    network: Network

    def advance(self, steps: int) -> None:
        """Take `steps` steps, and wait until they are done."""


def network_of(data: dataset.Dataset, workload: Workload, device: torch.device) -> Network:
    """Return a network that is the same for each way."""
    torch.manual_seed(SEED)
    return Network(data.columns, workload.settings).to(device)


class Ours:
    """The reference trainer."""

    def __init__(self, data: dataset.Dataset, workload: Workload, device: torch.device) -> None:
        chosen, team = workload.settings, Ranks()
        here = loader.place(data, device, 1.0)
        self.network = network_of(data, workload, device)
        self._steps = train.build_steps(NO_TRIAL, chosen, self.network, here, team, device)
        self._per_epoch, self._taken = workload.steps, 0

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            epoch, step = divmod(self._taken, self._per_epoch)
            if step == 0:
                self._steps.begin(epoch, 0, 0.0)
            self._steps.take()
            self._taken += 1
        self._steps.loss_sum()


class Eager:
    """Rows on the device, taken by index_select; autograd, torch.optim's fused AdamW.

    The next epoch's order is drawn during the training, as in ours.
    """

    def __init__(self, data: dataset.Dataset, workload: Workload, device: torch.device) -> None:
        self.network = network_of(data, workload, device)
        self._rows, self._settings, self._device = data.train.to(device), workload.settings, device
        self._batch, self._per_epoch, self._taken = workload.batch, workload.steps, 0
        self._optimizer, self._kind = adamw_of(self.network, workload), data.kind
        self._orders = loader.RowOrders(SEED, len(self._rows), workload.batch, Ranks())
        self._order = torch.zeros(len(self._rows), dtype=torch.int64, device=device)

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            epoch, step = divmod(self._taken, self._per_epoch)
            if step == 0:
                self._begin(epoch)
            self._take(step)
            self._taken += 1
        synchronize(self._device)

    def _begin(self, epoch: int) -> None:
        self._order.copy_(self._orders.take(epoch))

    def _take(self, step: int) -> None:
        self._optimizer.zero_grad()
        index = self._order[step * self._batch : (step + 1) * self._batch]
        self._loss(index).backward()  # type: ignore[no-untyped-call]
        rate = cosine_learning_rate(self._taken / self._per_epoch, self._settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()

    def _loss(self, index: Tensor) -> Tensor:
        batch = self._rows.select(index)
        with autocast(self._device):
            return compute_loss(
                self.network(batch.numeric, batch.categorical), batch.target, self._kind
            )


class Captured(Eager):
    """The best of torch: batch, network and loss compiled, the whole step in one CUDA graph.

    The batch's number and the learning rate are on the device, so the same graph is replayed for
    each step. A CPU has no graphs: there the step is called.
    """

    def __init__(
        self, data: dataset.Dataset, workload: Workload, device: torch.device, mode: str
    ) -> None:
        super().__init__(data, workload, device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)  # step of the epoch
        self._places = torch.arange(workload.batch, device=device)
        self._rates = torch.zeros(workload.steps, device=device)
        self._rate = torch.zeros((), device=device)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate
            group["capturable"] = device.type == "cuda"
        self._compiled: Callable[[], Tensor] = torch.compile(self._next_loss, mode=mode)
        self._replay: Callable[[], object] = self._whole_step
        if device.type == "cuda":
            self._replay = self._capture()

    def _begin(self, epoch: int) -> None:
        super()._begin(epoch)
        self._next.zero_()
        self._rates.copy_(build_schedule(epoch, self._per_epoch, self._taken, self._settings)[:, 0])

    def _take(self, step: int) -> None:  # noqa: ARG002  the device knows
        self._replay()

    def _next_loss(self) -> Tensor:
        return self._loss(self._order[self._next * self._batch + self._places])

    def _whole_step(self) -> None:
        self._optimizer.zero_grad()
        self._compiled().backward()  # type: ignore[no-untyped-call]
        self._rate.copy_(self._rates.index_select(0, self._next)[0])
        self._optimizer.step()
        self._next += 1

    def _capture(self) -> Callable[[], object]:
        """Return the graph of a step; weights are as before the steps that compiled it."""
        weights = [*self.network.parameters()]
        before = [weight.detach().clone() for weight in weights]
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self._next.zero_()
                self._whole_step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad()  # the graph's gradients are in the graph's memory
        with torch.cuda.graph(graph):
            self._whole_step()
        with torch.no_grad():
            for weight, previous in zip(weights, before, strict=True):
                weight.copy_(previous)
            for state in self._optimizer.state.values():
                for value in state.values():
                    value.zero_()
        return graph.replay


def adamw_of(network: Network, workload: Workload) -> torch.optim.Optimizer:
    """Return torch's fastest AdamW, without weight decay of biases."""
    groups: list[dict[str, Any]] = [
        {"params": [w for w in network.parameters() if w.ndim > 1]},
        {"params": [w for w in network.parameters() if w.ndim == 1], "weight_decay": 0.0},
    ]
    chosen = workload.settings
    return torch.optim.AdamW(
        groups, lr=chosen.learning_rate, weight_decay=chosen.weight_decay, fused=True
    )


def autocast(device: torch.device) -> Any:
    """Return a context with bfloat16 if our trainer uses it on this device, else an empty one."""
    dtype = train.matmul_dtype(settings.Settings(), device) if device.type == "cuda" else None
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


WAYS: dict[str, Callable[[dataset.Dataset, Workload, torch.device], Way]] = {
    "ours": Ours,
    "autotuned": partial(Captured, mode="max-autotune-no-cudagraphs"),
    "captured": partial(Captured, mode="default"),
    "eager": Eager,
}


def prepare(device: torch.device) -> None:
    """Set torch's options as a trial on a GPU does, except those that only slow the others."""
    if device.type == "cuda":
        train.choose_device(NO_TRIAL, Ranks())
        torch.use_deterministic_algorithms(mode=False)  # our kernels are so by themselves


def quiet() -> None:
    """Hide warnings that torch.compile gives about its own imports."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=UserWarning)
