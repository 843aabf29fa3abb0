"""The training steps of an epoch on a GPU: each step is one CUDA graph.

All inputs of a step are on the device, so the host starts a step without waiting for the previous
one. The tensor `clock` has four numbers: the position of the batch's first row in the loader's
`order`, the step's number in the epoch, and dropout's seed and step number. The step's number
in the epoch selects the learning rate from a table, the schedule.

The weights are float32. With bfloat16 or float16, the hidden layers' matrix products use copies of
the weights in that type: the shadows. Sums, biases, embeddings, the last layer and the loss stay
float32. float16 can't represent small gradients, so with float16 the loss is multiplied by SCALE.
To get the same weights as without SCALE, AdamW's epsilon is multiplied by SCALE, too, and SGD's
learning rate is divided by SCALE.

If there are several ranks, each rank takes its part of the batch, and the ranks sum their
gradients. So a step is the same for any number of ranks, except for the order of summation.

The steps also work on a CPU, without graphs, for gangs without GPUs and for tests.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trialfleet.nodes.kernels import ops
from trialfleet.nodes.tabular import settings
from trialfleet.nodes.tabular.loader import Loader
from trialfleet.nodes.tabular.network import Network
from trialfleet.nodes.tabular.optimizers import BETA_1, BETA_2, EPSILON, Optimizer, build_schedule
from trialfleet.nodes.tabular.pace import Pace
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.steps import Steps

WARM_UPS = 3  # steps before a capture, in which libraries choose algorithms and allocate memory
AHEAD = 32  # maximum steps between checks of the device's progress

SCALE = 1024.0  # factor of the loss in float16


@functools.cache  # because cuBLAS keeps a workspace for each stream
def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


LOSSES = {
    "binary": "sigmoid_bce",
    "multiclass": "softmax_cross_entropy",
    "regression": "mean_squared_error",
}


class Forward(nn.Module):
    """The network's forward pass for the batch whose position is in the clock.

    Attributes:
        shadows: each parameter's copy in `dtype`, or an empty tensor for a parameter without a
            copy. The list is empty if `dtype` is float32.
        leaves: the tensors that get gradients. A copy takes its parameter's place. If there are no
            categorical columns, the embedding is left out.
    """

    def __init__(
        self,
        network: Network,
        chosen: settings.Settings,
        loader: Loader,
        clock: Tensor,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._loader, self._clock = loader, clock
        self._first_code, self._dropout = network.first_code, chosen.dropout
        self._dtype = dtype if chosen.layers else torch.float32  # the last layer reads float32
        embedding, *layers = network.parameters()
        self.shadows: list[Tensor] = []
        if dtype != torch.float32:
            self.shadows = [w.new_empty(0, dtype=dtype) for w in network.parameters()]
            for i in range(0, 2 * chosen.layers, 2):  # weight, bias, weight, bias, …
                layers[i] = nn.Parameter(layers[i].detach().to(dtype))
                self.shadows[1 + i] = layers[i].detach()
        if len(network.first_code):
            self._sources: list[Tensor] = [embedding, *layers]
            self.leaves = nn.ParameterList([embedding, *layers])
        else:
            self._sources = [embedding.detach(), *layers]
            self.leaves = nn.ParameterList(layers)

    def forward(self, rows: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Return outputs [b, o] and targets [b] of this rank's part of the batch.

        The part has b = `rows` rows. `first` is the number of the batch's rows before this part.
        """
        embedding, *hidden, weight, bias = self._sources
        source = self._loader.rows
        x, _, target = ops.gather_embed(  # [b, d + k * e], codes, [b]
            source.numeric,
            source.categorical,
            source.target,
            self._loader.order,
            self._clock[:1],
            self._first_code,
            embedding,
            rows,
            self._dtype,
        )
        for i in range(0, len(hidden), 2):
            product = functional.linear(x, hidden[i])
            offset, random = first * product.shape[1], self._clock[2:]
            x = ops.bias_relu_dropout(product, hidden[i + 1], random, i // 2, self._dropout, offset)
        return functional.linear(x.float(), weight, bias), target


class GraphSteps(Steps):
    """Training steps on a GPU, by CUDA graphs. `steps.Steps` describes the methods.

    Args:
        network: the network, on the device to train on.
        dtype: the type of the hidden layers' products: float32, bfloat16 or float16.
        together: if True, the ranks sum their gradients in each step. If False, each rank uses
            only the gradients of its part of the batch (see `local_steps.py`).
        capture: if False, the steps don't use CUDA graphs, for tests.
    """

    def __init__(
        self,
        network: Network,
        chosen: settings.Settings,
        kind: str,
        loader: Loader,
        *,
        seed: int,
        dtype: torch.dtype = torch.float32,
        team: Ranks | None = None,
        together: bool = True,
        capture: bool = True,
    ) -> None:
        device = network.first_code.device
        self._settings, self._loader, self._seed, self._team = chosen, loader, seed, team or Ranks()
        self._together = together
        self._clock = torch.zeros(4, dtype=torch.int64, device=device)
        self._schedule = torch.zeros(len(loader.sizes), 3, device=device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._optimizer = Optimizer(network, chosen)
        self._forward = Forward(network, chosen, loader, self._clock, dtype)
        self._loss = LOSSES[kind]
        self._scale = SCALE if dtype == torch.float16 else 1.0
        # This rank's rows, by the total number of a batch's rows.
        self._parts = dict(zip(loader.batches, loader.sizes, strict=True))
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by the same key
        self._near: torch.cuda.Event | None = None
        self._pace = Pace(AHEAD)
        if capture and device.type == "cuda":
            self._capture_graph()

    def begin(self, epoch: int, step: int, loss_sum: float) -> None:
        """Prepare for an epoch's steps from `step` on."""
        sizes, taken = self._loader.sizes, self._optimizer.steps
        self._next = step
        self._loader.begin(epoch)
        schedule = build_schedule(epoch, len(sizes), taken - step, self._settings)
        if self._settings.optimizer == "sgd":
            schedule[:, 0] /= self._scale
        self._schedule.copy_(schedule)
        self._clock.copy_(torch.tensor([sum(sizes[:step]), step, self._seed, taken]))
        self._loss_sum.fill_(loss_sum)

    def take(self) -> None:
        """Update the weights with the next batch of the epoch."""
        step = self._next
        self._loader.ready(step)
        batch = self._loader.batches[step]
        if batch in self._graphs:
            self._graphs[batch].replay()
        else:
            self._step(batch)
        self._optimizer.steps += 1
        self._next += 1
        if self._clock.is_cuda and self._pace.is_due():
            self._stay_near()

    def loss_sum(self) -> float:
        """Return the sum of the losses of the epoch's steps so far."""
        return self._loss_sum.item()

    def state(self) -> dict[str, Any]:
        """Return the optimiser's state. Steps with any dtype can continue from it."""
        return self._scale_state(self._optimizer.state(), 1 / self._scale)

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `state()` has returned."""
        self._optimizer.restore(self._scale_state(state, self._scale))
        self.weights_moved()

    @property
    def weights(self) -> list[nn.Parameter]:
        """The network's weights. After changing them, call `weights_moved`."""
        return self._optimizer.weights

    @torch.no_grad()
    def weights_moved(self) -> None:
        """Update the weights' copies in `dtype`, after the weights were changed."""
        for shadow, weight in zip(self._forward.shadows, self._optimizer.weights, strict=False):
            if shadow.numel():
                shadow.copy_(weight)

    def close(self) -> None:
        """Delete the graphs."""
        self._graphs.clear()  # torch's process group can't end before this

    @staticmethod
    def _scale_state(state: dict[str, Any], scale: float) -> dict[str, Any]:
        if scale == 1:  # a copy would take as much memory as the moments
            return state
        m, v = ([x * scale**power for x in state[name]] for name, power in (("m", 1), ("v", 2)))
        return state | {"m": m, "v": v}

    # One step

    def _step(self, batch: int) -> None:
        """Take a step with this rank's part of a batch of `batch` rows."""
        rows = self._parts[batch]
        share = rows / batch if self._together else min(1, rows)
        first, _ = self._team.part(batch)
        # a rank may have no rows of a small last batch
        outputs, target = self._forward(max(1, rows), first)
        flat = outputs if self._loss == "softmax_cross_entropy" else outputs.squeeze(1)
        loss, gradient = ops.loss_and_gradient(self._loss, flat, target)
        if share * self._scale != 1:
            gradient = gradient * (share * self._scale)
        leaves = list(self._forward.leaves)
        gradients = [*torch.autograd.grad(outputs, leaves, gradient.view_as(outputs))]
        if self._team.count > 1 and self._together:
            *gradients, loss = self._team.sums([*gradients, loss * share])
        self._apply_gradients([gradient.contiguous() for gradient in gradients])
        ops.tick_(self._clock, loss, self._loss_sum, rows)

    @torch.no_grad()
    def _apply_gradients(self, gradients: list[Tensor]) -> None:
        optimizer, used = self._optimizer, slice(-len(gradients), None)  # without an idle embedding
        weights, m, v = optimizer.weights[used], optimizer.m[used], optimizer.v[used]
        shadows, decays = self._forward.shadows[used], optimizer.decays[used]
        now, scale = (self._schedule, self._clock[1:2]), self._scale
        if self._settings.optimizer == "adamw":
            epsilon = EPSILON * scale
            ops.adamw_step_(
                weights, gradients, m, v, shadows, decays, *now, BETA_1, BETA_2, epsilon
            )
        else:  # the schedule's rates are divided by the scale
            decays = [decay * scale for decay in decays]
            ops.sgd_step_(weights, gradients, m, shadows, decays, *now, self._settings.momentum)

    # The capture

    def _capture_graph(self) -> None:
        pool = torch.cuda.graph_pool_handle()  # for all graphs, as only one is replayed at a time
        here, aside = torch.cuda.current_stream(), _new_stream(self._clock.device)
        for batch in sorted(self._parts, reverse=True):  # in the same order on all ranks
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                self._warm_up(batch)
            here.wait_stream(aside)
            self._graphs[batch] = torch.cuda.CUDAGraph()
            # thread_local, because NCCL's watchdog thread queries its own events meanwhile.
            with torch.cuda.graph(
                self._graphs[batch], pool=pool, capture_error_mode="thread_local"
            ):
                self._step(batch)

    @torch.no_grad()
    def _warm_up(self, batch: int) -> None:
        """Take steps before a capture, and undo them.

        In the first steps, libraries such as cuBLAS allocate memory, and the ranks connect.
        """
        optimizer = self._optimizer
        state = [*optimizer.weights, *optimizer.m, *optimizer.v, *self._forward.shadows]
        state += [self._clock, self._loss_sum]
        before = [tensor.clone() for tensor in state]
        for _ in range(WARM_UPS):
            with torch.enable_grad():
                self._step(batch)
        for tensor, saved in zip(state, before, strict=True):
            tensor.copy_(saved)

    def _stay_near(self) -> None:
        """Wait for the GPU to finish the steps that were already queued at the previous call.

        This keeps the GPU's queue short, so that a checkpoint needn't wait long. The steps queued
        since the previous call keep the GPU busy meanwhile.
        """
        previous, self._near = self._near, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._near.record()
        if previous:
            previous.synchronize()
        self._pace.begin(self._pace.proposal())
