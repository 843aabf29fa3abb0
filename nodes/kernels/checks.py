"""What the operators' arguments must be, for plain.py; csrc/checks.h is the same in C++.

Every message names the operator, the argument, what is right and what was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]
ANY = -1  # a dimension of any size

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
CPU_FLOATS = (*FLOATS, torch.float64)  # float64 for the references of tests, on the CPU alone


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, which must all lie on one device."""

    operator: str
    device: torch.device

    @property
    def floats(self) -> tuple[torch.dtype, ...]:
        """The types that the operator computes with here."""
        return CPU_FLOATS if self.device.type == "cpu" else FLOATS

    def require(self, *, met: bool, argument: str, wanted: str, given: object) -> None:
        """Raise ValueError unless the condition is met."""
        if not met:
            raise ValueError(
                f"trialfleet::{self.operator}: {argument} must be {wanted}; it is {given}"
            )

    def tensor(
        self,
        argument: str,
        value: Tensor,
        dtypes: Sequence[torch.dtype],
        shape: Shape | None = None,
    ) -> None:
        """Require a contiguous tensor of one of the types, and of the shape if there is one."""
        self.require(
            met=value.device == self.device,
            argument=argument,
            wanted=f"on {self.device}, as the other arguments are",
            given=f"on {value.device}",
        )
        self.require(
            met=value.dtype in dtypes,
            argument=argument,
            wanted=_either([_name(dtype) for dtype in dtypes]),
            given=_name(value.dtype),
        )
        self.require(
            met=shape is None or _fits(value.shape, shape),
            argument=argument,
            wanted=f"of shape {_written(shape or ())}",
            given=_written(value.shape),
        )
        self.require(
            met=value.is_contiguous(),
            argument=argument,
            wanted="contiguous",
            given=f"not: shape {_written(value.shape)}, strides {_written(value.stride())}",
        )

    def lists(self, weights: Sequence[Tensor], **others: Sequence[object]) -> None:
        """Require lists as long as that of the weights."""
        for argument, values in others.items():
            self.require(
                met=len(values) == len(weights),
                argument=argument,
                wanted=f"a list of {len(weights)}, one per weight",
                given=f"one of {len(values)}",
            )


def mulc_(x: Tensor) -> None:
    """Check the arguments of `mulc_`."""
    arguments = Arguments("mulc_", x.device)
    arguments.tensor("x", x, arguments.floats)


def exp(x: Tensor) -> None:
    """Check the arguments of `exp`."""
    arguments = Arguments("exp", x.device)
    arguments.tensor("x", x, arguments.floats)


def bias_relu_dropout(
    x: Tensor, bias: Tensor, rng: Tensor, layer: int, p: float, offset: int, width: int
) -> None:
    """Check the arguments of `bias_relu_dropout`."""
    arguments = Arguments("bias_relu_dropout", x.device)
    arguments.tensor("x", x, arguments.floats, (ANY, ANY))
    arguments.tensor("bias", bias, tuple({torch.float32: 0, x.dtype: 0}), (x.shape[1],))
    arguments.tensor("rng", rng, (torch.int64,), (2,))
    in_range = 0 <= layer < 2**32
    arguments.require(met=in_range, argument="layer", wanted="in [0, 2^32)", given=layer)
    _probability(arguments, p)
    arguments.require(met=offset >= 0, argument="offset", wanted="at least 0", given=offset)
    is_wide = width == 0 or width >= x.shape[1]
    wanted = "0 or at least the columns of x"
    arguments.require(met=is_wide, argument="width", wanted=wanted, given=width)


def bias_relu_dropout_backward(grad: Tensor, y: Tensor, p: float) -> None:
    """Check the arguments of `bias_relu_dropout_backward`."""
    arguments = Arguments("bias_relu_dropout_backward", grad.device)
    arguments.tensor("grad", grad, arguments.floats, (ANY, ANY))
    arguments.tensor("y", y, (grad.dtype,), tuple(grad.shape))
    _probability(arguments, p)


def softmax_cross_entropy(logits: Tensor, target: Tensor) -> None:
    """Check the arguments of `softmax_cross_entropy`."""
    arguments = Arguments("softmax_cross_entropy", logits.device)
    arguments.tensor("logits", logits, arguments.floats, (ANY, ANY))
    arguments.tensor("target", target, (torch.int64,), (logits.shape[0],))


def sigmoid_bce(logits: Tensor, target: Tensor) -> None:
    """Check the arguments of `sigmoid_bce`."""
    arguments = Arguments("sigmoid_bce", logits.device)
    arguments.tensor("logits", logits, arguments.floats, (ANY,))
    arguments.tensor("target", target, (torch.float32,), tuple(logits.shape))


def mean_squared_error(outputs: Tensor, target: Tensor) -> None:
    """Check the arguments of `mean_squared_error`."""
    arguments = Arguments("mean_squared_error", outputs.device)
    arguments.tensor("outputs", outputs, arguments.floats, (ANY,))
    arguments.tensor("target", target, (torch.float32,), tuple(outputs.shape))


def gather_embed(
    numeric: Tensor,
    categorical: Tensor,
    target: Tensor,
    order: Tensor,
    cursor: Tensor,
    first_code: Tensor,
    weight: Tensor,
    rows: int,
    dtype: torch.dtype,
) -> None:
    """Check the arguments of `gather_embed`."""
    arguments = Arguments("gather_embed", numeric.device)
    arguments.tensor("numeric", numeric, (torch.float32,), (ANY, ANY))
    n = numeric.shape[0]
    arguments.tensor("categorical", categorical, (torch.int32,), (n, ANY))
    arguments.tensor("target", target, (torch.float32, torch.int64), (n,))
    arguments.tensor("order", order, (torch.int64,), (ANY,))
    arguments.tensor("cursor", cursor, (torch.int64,), (1,))
    arguments.tensor("first_code", first_code, (torch.int32,), (categorical.shape[1],))
    arguments.tensor("weight", weight, (torch.float32,), (ANY, ANY))
    arguments.require(met=rows >= 0, argument="rows", wanted="at least 0", given=rows)
    arguments.require(
        met=rows == 0 or order.numel() > 0,
        argument="order",
        wanted="of at least one row",
        given="empty",
    )
    arguments.require(
        met=dtype in FLOATS,
        argument="dtype",
        wanted=_either([_name(allowed) for allowed in FLOATS]),
        given=_name(dtype),
    )


def gather_embed_backward(
    grad: Tensor, codes: Tensor, numeric: int, vocabulary: int, embedding: int
) -> None:
    """Check the arguments of `gather_embed_backward`."""
    arguments = Arguments("gather_embed_backward", grad.device)
    sizes = {"numeric": numeric, "vocabulary": vocabulary, "embedding": embedding}
    for argument, size in sizes.items():
        arguments.require(met=size >= 0, argument=argument, wanted="at least 0", given=size)
    arguments.tensor("codes", codes, (torch.int32,), (ANY, ANY))
    rows, k = codes.shape
    arguments.tensor("grad", grad, FLOATS, (rows, numeric + k * embedding))


def adamw_step_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    shadows: Sequence[Tensor],
    decays: Sequence[float],
    schedule: Tensor,
    step: Tensor,
) -> None:
    """Check the arguments of `adamw_step_`."""
    arguments = Arguments("adamw_step_", schedule.device)
    arguments.lists(weights, gradients=gradients, m=m, v=v, decays=decays)
    _schedule(arguments, schedule, step)
    _weights(arguments, weights, gradients, shadows)
    for i, weight in enumerate(weights):
        shape = tuple(weight.shape)
        arguments.tensor(f"m[{i}]", m[i], (torch.float32,), shape)
        arguments.tensor(f"v[{i}]", v[i], (torch.float32,), shape)


def sgd_step_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocity: Sequence[Tensor],
    shadows: Sequence[Tensor],
    decays: Sequence[float],
    schedule: Tensor,
    step: Tensor,
) -> None:
    """Check the arguments of `sgd_step_`."""
    arguments = Arguments("sgd_step_", schedule.device)
    arguments.lists(weights, gradients=gradients, velocity=velocity, decays=decays)
    _schedule(arguments, schedule, step)
    _weights(arguments, weights, gradients, shadows)
    for i, weight in enumerate(weights):
        arguments.tensor(f"velocity[{i}]", velocity[i], (torch.float32,), tuple(weight.shape))


def tick_(clock: Tensor, loss: Tensor, loss_sum: Tensor, rows: int) -> None:
    """Check the arguments of `tick_`."""
    arguments = Arguments("tick_", clock.device)
    arguments.tensor("clock", clock, (torch.int64,), (4,))
    arguments.tensor("loss", loss, (torch.float32,), ())
    arguments.tensor("loss_sum", loss_sum, (torch.float64,), ())
    arguments.require(met=rows >= 0, argument="rows", wanted="at least 0", given=rows)


def _schedule(arguments: Arguments, schedule: Tensor, step: Tensor) -> None:
    arguments.tensor("schedule", schedule, (torch.float32,), (ANY, 3))
    arguments.tensor("step", step, (torch.int64,), (1,))
    some = schedule.shape[0] > 0
    arguments.require(met=some, argument="schedule", wanted="of at least one step", given="empty")


def _weights(
    arguments: Arguments,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    shadows: Sequence[Tensor],
) -> None:
    if shadows:
        arguments.lists(weights, shadows=shadows)
    for i, weight in enumerate(weights):
        arguments.tensor(f"weights[{i}]", weight, (torch.float32,))
        arguments.tensor(f"gradients[{i}]", gradients[i], FLOATS, tuple(weight.shape))
        if shadows and shadows[i].numel():
            low = (torch.bfloat16, torch.float16)
            arguments.tensor(f"shadows[{i}]", shadows[i], low, tuple(weight.shape))


def _probability(arguments: Arguments, p: float) -> None:
    arguments.require(met=0 <= p < 1, argument="p", wanted="in [0, 1)", given=p)


def _fits(sizes: Sequence[int], shape: Shape) -> bool:
    return len(sizes) == len(shape) and all(
        wanted in {ANY, size} for size, wanted in zip(sizes, shape, strict=True)
    )


def _written(shape: Sequence[int]) -> str:
    return "[" + ", ".join("*" if size == ANY else str(size) for size in shape) + "]"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
