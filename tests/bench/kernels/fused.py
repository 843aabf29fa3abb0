"""Each fused operation compared with plain torch: compiled, and eager.

Memory traffic is the necessary minimum: each input read once, and each output written once. What
stays in the cache doesn't count.

    b  rows    h  units    c  classes    n  samples    d, k  numeric and categorical columns
    e  numbers per embedding    v  rows of the embedding table
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.bench.kernels.timing import Call, freshly_compiled
from trialfleet.nodes.kernels import ops

DROPPED = 0.1
BETA_1, BETA_2, EPSILON, MOMENTUM = 0.9, 0.999, 1e-8, 0.9
NUMERIC, CATEGORIES, CODES, EMBEDDING = 32, 8, 1000, 16  # d, k, v / k, e


@dataclass(frozen=True)
class Fused:
    """One fused operation at one size: the bytes that it moves, and its implementations."""

    name: str
    shape: str
    bytes: int
    ours: Call
    plain: Callable[..., object]
    arguments: tuple[Any, ...]  # of `plain`
    torchs_own: tuple[str, Call] | None = None  # one that torch ships itself, by its name

    def implementations(self) -> dict[str, Callable[[], Call]]:
        """Return, for each implementation, a function that makes its call."""
        made: dict[str, Callable[[], Call]] = {
            "ours": lambda: self.ours,
            "compile": lambda: partial(freshly_compiled(self.plain), *self.arguments),
            "eager": lambda: partial(self.plain, *self.arguments),
        }
        if self.torchs_own is not None:
            name, call = self.torchs_own
            made[name] = lambda: call
        return made


@dataclass(frozen=True)
class Scale:
    """Sizes, type and device of the fused operations' arrays.

    Attributes:
        device: of all arrays.
        dtype: of activations: bfloat16 on a GPU, as in the trainer.
        rows: b of activations.
        width: h, and the sides of the optimiser's matrices.
        scored: b of logits of several classes.
        classes: c.
        outputs: b of the losses that have one output.
        batch: b of what is gathered from the table.
        samples: n.
    """

    device: torch.device
    dtype: torch.dtype
    rows: int
    width: int
    scored: int
    classes: int
    outputs: int
    batch: int
    samples: int

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return normal numbers on the device, by default of the activations' type."""
        return torch.randn(*shape, device=self.device).to(dtype or self.dtype)

    def integers(self, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return whole numbers from 0 to `below` - 1 on the device."""
        return torch.randint(below, shape, device=self.device, dtype=dtype)


def scales(device: torch.device) -> tuple[Scale, ...]:
    """Return the sizes for a device: one where launches dominate, one where memory does.

    The larger one's arrays are several times any GPU's last cache, which is 60 MB on an H200 and
    126 MB on a B200. Otherwise data left in the cache by the previous call would need no memory.
    """
    small = {"rows": 256, "width": 128, "scored": 256, "classes": 16, "outputs": 4096, "batch": 256}
    if device.type == "cpu":
        large = {"rows": 2048, "width": 1024, "scored": 2048, "classes": 128}
        return (
            Scale(device, torch.float32, **small, samples=1 << 14),
            Scale(device, torch.float32, **large, outputs=1 << 21, batch=2048, samples=1 << 18),
        )
    large = {"rows": 1 << 15, "width": 4096, "scored": 1 << 17, "classes": 1024}
    return (
        Scale(device, torch.bfloat16, **small, samples=1 << 16),
        Scale(device, torch.bfloat16, **large, outputs=1 << 26, batch=1 << 21, samples=1 << 22),
    )


def activation(s: Scale) -> Fused:
    """Return bias, ReLU and dropout, forward."""
    x, bias = s.random(s.rows, s.width), s.random(s.width, dtype=torch.float32)
    rng = torch.tensor([1, 2], device=s.device)

    def plain(x: Tensor, bias: Tensor) -> Tensor:
        return functional.dropout(functional.relu(x + bias.to(x.dtype)), DROPPED)

    return Fused(
        name="bias_relu_dropout",
        shape=f"{s.rows} x {s.width}",
        bytes=2 * x.nbytes,
        ours=partial(torch.ops.trialfleet.bias_relu_dropout, x, bias, rng, 0, DROPPED),
        plain=plain,
        arguments=(x, bias),
    )


def linear(s: Scale) -> Fused:
    """Return a hidden layer without dropout: a matrix product of cuBLAS's, then bias and ReLU.

    The question is whether cuBLASLt is faster, which does both at once if bias and product have the
    same type.
    """
    x, weight = s.random(s.rows, s.width), s.random(s.width, s.width) / s.width**0.5
    bias, rng = s.random(s.width, dtype=torch.float32), torch.tensor([1, 2], device=s.device)
    narrow = bias.to(s.dtype)

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.bias_relu_dropout(functional.linear(x, weight), bias, rng, 0, 0.0)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.relu(functional.linear(x, weight) + bias.to(x.dtype))

    epilogue = torch.ops.aten._addmm_activation.default
    return Fused(
        name="linear, bias_relu_dropout",
        shape=f"{s.rows} x {s.width}",
        bytes=2 * x.nbytes + weight.nbytes,
        ours=partial(ours, x, weight, bias),
        plain=plain,
        arguments=(x, weight, bias),
        torchs_own=("cuBLASLt", partial(epilogue, narrow, x, weight.t())),
    )


def activation_backward(s: Scale) -> Fused:
    """Return bias, ReLU and dropout, backward, from the forward pass's outputs."""
    gradient, y = s.random(s.rows, s.width), s.random(s.rows, s.width)

    def plain(gradient: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        moved = torch.where(y > 0, gradient.float() / (1 - DROPPED), 0.0)
        return moved.to(gradient.dtype), moved.sum(0)

    return Fused(
        name="bias_relu_dropout_backward",
        shape=f"{s.rows} x {s.width}",
        bytes=3 * y.nbytes,
        ours=partial(torch.ops.trialfleet.bias_relu_dropout_backward, gradient, y, DROPPED),
        plain=plain,
        arguments=(gradient, y),
    )


def cross_entropy(s: Scale) -> Fused:
    """Return the softmax cross-entropy and its gradient."""
    logits, target = s.random(s.scored, s.classes), s.integers(s.classes, s.scored)
    return loss(
        "softmax_cross_entropy",
        torch.ops.trialfleet.softmax_cross_entropy,
        lambda logits, target: functional.cross_entropy(logits.float(), target),
        (logits, target),
    )


def binary_cross_entropy(s: Scale) -> Fused:
    """Return the cross-entropy of a sigmoid and its gradient."""
    target = s.integers(2, s.outputs).float()
    return loss(
        "sigmoid_bce",
        torch.ops.trialfleet.sigmoid_bce,
        lambda x, target: functional.binary_cross_entropy_with_logits(x.float(), target),
        (s.random(s.outputs), target),
    )


def squared_error(s: Scale) -> Fused:
    """Return the mean squared error and its gradient."""
    return loss(
        "mean_squared_error",
        torch.ops.trialfleet.mean_squared_error,
        lambda x, target: functional.mse_loss(x.float(), target),
        (s.random(s.outputs), s.random(s.outputs, dtype=torch.float32)),
    )


def loss(
    name: str, ours: Callable[..., object], formula: Callable[..., Tensor], data: tuple[Tensor, ...]
) -> Fused:
    """Return a loss with its gradient by the first argument."""
    outputs, target = data
    both = torch.func.grad_and_value(formula)

    def plain(outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        gradient, value = both(outputs, target)
        return value, gradient

    return Fused(
        name=name,
        shape=" x ".join(map(str, outputs.shape)),
        bytes=2 * outputs.nbytes + target.nbytes,
        ours=partial(ours, *data),
        plain=plain,
        arguments=data,
    )


@dataclass(frozen=True)
class Parameters:
    """A network's weights, and the optimiser's state for them."""

    weights: list[Tensor]
    gradients: list[Tensor]
    m: list[Tensor]
    v: list[Tensor]
    schedule: Tensor
    step: Tensor
    decays: list[float]

    @classmethod
    def of(cls, s: Scale) -> Parameters:
        """Return the weights and biases of four layers."""
        shapes = [(s.width, s.width), (s.width,)] * 4
        weights, gradients = (
            [s.random(*shape, dtype=torch.float32) for shape in shapes] for _ in range(2)
        )
        return cls(
            weights=weights,
            gradients=gradients,
            m=[torch.zeros_like(w) for w in weights],
            v=[torch.zeros_like(w) for w in weights],
            schedule=torch.tensor([[1e-6, 1.0, 1.0]], device=s.device),
            step=torch.zeros(1, dtype=torch.int64, device=s.device),
            decays=[0.01 if len(shape) > 1 else 0.0 for shape in shapes],
        )

    @property
    def bytes(self) -> int:
        """Size of all weights together."""
        return sum(w.nbytes for w in self.weights)

    @property
    def shape(self) -> str:
        """The number of values and of tensors, as text."""
        return f"{self.bytes // 4} in {len(self.weights)}"

    def trained_by(
        self, optimizer: Callable[..., torch.optim.Optimizer], **options: Any
    ) -> tuple[str, Call]:
        """Return the step of torch's own optimiser with `fused=True`."""
        parameters = [nn.Parameter(w) for w in self.weights]
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return "torch.optim", optimizer(parameters, lr=1e-6, fused=True, **options).step


def adamw(s: Scale) -> Fused:
    """Return a step of AdamW over all weights."""
    p = Parameters.of(s)
    options = {"betas": (BETA_1, BETA_2), "eps": EPSILON, "capturable": s.device.type == "cuda"}
    state = (p.weights, p.gradients, p.m, p.v)
    constants = (BETA_1, BETA_2, EPSILON)
    return Fused(
        name="adamw_step_",
        shape=p.shape,
        bytes=7 * p.bytes,  # read: w, g, m, v; written: w, m, v
        ours=partial(ops.adamw_step_, *state, [], p.decays, p.schedule, p.step, *constants),
        plain=plain_adamw,
        arguments=(*state, p.decays, p.schedule, p.step),
        torchs_own=p.trained_by(torch.optim.AdamW, weight_decay=0.01, **options),
    )


def plain_adamw(
    weights: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    decays: list[float],
    schedule: Tensor,
    step: Tensor,
) -> None:
    """AdamW by the formula of nodes/tabular/optimizers.py; the schedule stays on the device."""
    rate, first, second = schedule.index_select(0, step).unbind(1)
    for w, g, m, v, decay in zip(weights, gradients, means, squares, decays, strict=True):
        m.lerp_(g, 1 - BETA_1)
        v.mul_(BETA_2).addcmul_(g, g, value=1 - BETA_2)
        w.mul_(1 - rate * decay).sub_(rate * first * m / ((v * second).sqrt() + EPSILON))


def sgd(s: Scale) -> Fused:
    """Return a step of SGD with momentum over all weights."""
    p = Parameters.of(s)
    state = (p.weights, p.gradients, p.m)
    return Fused(
        name="sgd_step_",
        shape=p.shape,
        bytes=5 * p.bytes,  # read: w, g, m; written: w, m
        ours=partial(ops.sgd_step_, *state, [], p.decays, p.schedule, p.step, MOMENTUM),
        plain=plain_sgd,
        arguments=(*state, p.decays, p.schedule, p.step),
        torchs_own=p.trained_by(torch.optim.SGD, momentum=MOMENTUM),
    )


def plain_sgd(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    decays: list[float],
    schedule: Tensor,
    step: Tensor,
) -> None:
    """SGD by the formula of nodes/tabular/optimizers.py; the schedule stays on the device."""
    rate = schedule.index_select(0, step)[:, 0]
    for w, g, m, decay in zip(weights, gradients, velocities, decays, strict=True):
        m.mul_(MOMENTUM).add_(g)
        w.mul_(1 - rate * decay).sub_(rate * m)


def gather(s: Scale) -> Fused:
    """Return a batch of rows by index, with its embeddings."""
    table = (
        s.random(s.samples, NUMERIC, dtype=torch.float32),
        s.integers(CODES, s.samples, CATEGORIES, dtype=torch.int32),
        s.random(s.samples, dtype=torch.float32),
        torch.randperm(s.samples, device=s.device),
        torch.zeros(1, dtype=torch.int64, device=s.device),
        torch.arange(0, CATEGORIES * CODES, CODES, dtype=torch.int32, device=s.device),
        s.random(CATEGORIES * CODES, EMBEDDING, dtype=torch.float32),
    )
    arguments = (*table, s.batch, s.dtype)
    joined = (NUMERIC + CATEGORIES * EMBEDDING) * s.dtype.itemsize
    return Fused(
        name="gather_embed",
        shape=f"{s.batch} of {s.samples}",
        bytes=s.batch * (4 * NUMERIC + 8 * CATEGORIES + 4 + 4 + 8 + joined),
        ours=partial(torch.ops.trialfleet.gather_embed, *arguments),
        plain=plain_gather,
        arguments=arguments,
    )


def plain_gather(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the batch at the cursor: numbers followed by embeddings, codes, target."""
    numeric, categorical, target, order, cursor, first_code, weight, rows, dtype = given
    chosen = order[cursor + torch.arange(rows, device=order.device)]
    codes = categorical[chosen] + first_code
    joined = torch.cat([numeric[chosen], weight[codes].flatten(1)], 1).to(dtype)
    return joined, codes, target[chosen]


def gather_backward(s: Scale) -> Fused:
    """Return the gradient of the embeddings.

    torch.compile's code for index_add_ adds by atomics, so in an order that differs between runs;
    ours has a fixed order. torch's own code sorts the codes first, and is deterministic, too.
    """
    vocabulary = CATEGORIES * CODES
    first = torch.arange(0, vocabulary, CODES, dtype=torch.int32, device=s.device)
    codes = s.integers(CODES, s.batch, CATEGORIES, dtype=torch.int32) + first
    gradient = s.random(s.batch, NUMERIC + CATEGORIES * EMBEDDING) / s.batch  # as of a mean loss

    def plain(gradient: Tensor, codes: Tensor) -> Tensor:
        rows = gradient[:, NUMERIC:].reshape(-1, EMBEDDING).float()
        zeros = torch.zeros(vocabulary, EMBEDDING, device=gradient.device)
        return zeros.index_add_(0, codes.flatten(), rows)

    def deterministic() -> Tensor:
        rows = gradient[:, NUMERIC:].reshape(-1, EMBEDDING).float()
        sorting: Callable[..., Tensor] = torch.ops.aten.embedding_dense_backward
        return sorting(rows, codes.flatten(), vocabulary, -1, False)  # noqa: FBT003  its own form

    embedded = CATEGORIES * EMBEDDING * s.dtype.itemsize
    return Fused(
        name="gather_embed_backward",
        shape=f"{s.batch} x {CATEGORIES}",
        bytes=s.batch * (4 * CATEGORIES + embedded) + 4 * vocabulary * EMBEDDING,
        ours=partial(
            torch.ops.trialfleet.gather_embed_backward,
            *(gradient, codes, NUMERIC, vocabulary, EMBEDDING),
        ),
        plain=plain,
        arguments=(gradient, codes),
        torchs_own=("embedding_dense_backward", deterministic),
    )


FUSED: tuple[Callable[[Scale], Fused], ...] = (  # the most important first: a run may be cut off
    gather,
    gather_backward,
    activation,
    activation_backward,
    linear,
    cross_entropy,
    binary_cross_entropy,
    squared_error,
    adamw,
    sgd,
)
