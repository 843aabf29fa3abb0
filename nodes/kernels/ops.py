"""The operators, typed. Importing this module loads the built library, building it if it must.

IMPLEMENTATION is "cuda", "cpu" or "plain": the best that is loaded; REASON says why nothing better
is ("" for cuda). What runs depends on where the tensors lie: the library of a CUDA torch has both.

All tensors must be contiguous, of any alignment, on one device. "Float" is float32, bfloat16 or
float16, and on the CPU also float64, for tests. Anything else raises ValueError with the operator,
the argument, what is right and what was given. Nothing waits for the device, so that every operator
can be captured in a CUDA graph; a value there can't be looked at, so an index outside its table
gives NaN on CUDA, and raises on the CPU. A kernel gives the same bits for the same input, whatever
the number of threads. Operators whose name ends in _ change arguments, unseen by autograd.

Shapes: b rows, h units, c classes; for the table n rows, d numeric and k categorical columns, e
numbers per embedding, v rows of embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trialfleet.nodes.kernels import build, plain, toolchain

NAMESPACE = "trialfleet"
SCHEMA = Path(__file__).parent / "csrc" / "schema.cpp"

_kernels: Any = torch.ops.trialfleet


def mulc_(x: Tensor, c: float) -> None:
    """Multiply x, float of any shape, by c in place."""
    _kernels.mulc_(x, c)


def exp(x: Tensor) -> Tensor:
    """Return e to the power of each element of x, float of any shape."""
    result: Tensor = _kernels.exp(x)
    return result


def bias_relu_dropout(
    x: Tensor, bias: Tensor, p: float, rng: Tensor, layer: int, offset: int = 0, width: int = 0
) -> Tensor:
    """Return max(x + bias, 0), with a share p of it dropped and the rest divided by 1 - p.

    Dropped elements are a function of rng and layer (Philox4x32-10), the same on every device.

    Args:
        x: [b, h] float.
        bias: [h], float32 or of x's type.
        p: the share, in [0, 1).
        rng: [2] int64, seed and step; give every step another.
        layer: number of the layer, at least 0, so that layers differ.
        offset: where x lies in a larger array, of whose mask it takes its part: the number of its
            first element there, row-major.
        width: columns of that array; 0: those of x.
    """
    y: Tensor = _kernels.bias_relu_dropout(x, bias, rng, layer, p, offset, width)
    return y


def mean_loss(name: str, outputs: Tensor, target: Tensor) -> Tensor:
    """Return a loss by its name, float32 []: the mean over the rows.

    softmax_cross_entropy   -log softmax(outputs)[target]; outputs [b, c] float, target [b] int64
    sigmoid_bce             the binary cross-entropy of sigmoid(outputs); outputs [b] float,
                            target [b] float32 in [0, 1]
    mean_squared_error      (outputs - target)²; outputs [b] float, target [b] float32
    """
    loss: Tensor = getattr(_kernels, name)(outputs, target)[0]
    return loss


def loss_and_gradient(name: str, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return a `mean_loss`, and its gradient by the outputs.

    Past autograd, whose product of that gradient with the loss's own would be a launch.
    """
    both: tuple[Tensor, Tensor] = getattr(_kernels, name)(outputs.detach(), target)
    return both


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
) -> tuple[Tensor, Tensor]:
    """Return the next batch: its rows' numbers beside their embeddings, and their targets.

    The rows are order[cursor : cursor + rows]; a position past the end stands for the last.
    Only weight has a gradient. No two columns may share a row of weight.

    Args:
        numeric: [n, d] float32; d may be 0.
        categorical: [n, k] int32; k may be 0.
        target: [n] float32 or int64.
        order: [m] int64, each in [0, n).
        cursor: [1] int64.
        first_code: [k] int32: column j's code c is row first_code[j] + c of weight.
        weight: [v, e] float32.
        rows: b.
        dtype: of the result: float32, bfloat16 or float16.

    Returns:
        [b, d + k * e] of dtype, and [b] of target's type.
    """
    found: tuple[Tensor, Tensor, Tensor] = _kernels.gather_embed(
        numeric, categorical, target, order, cursor, first_code, weight, rows, dtype
    )
    return found[0], found[2]


def adamw_step_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    shadows: Sequence[Tensor],
    decays: Sequence[float],
    schedule: Tensor,
    step: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """Take a step of AdamW with all weights; nodes/tabular/optimizers.py has the formula.

    Args:
        weights: float32, of any shapes.
        gradients: as the weights, but float32, bfloat16 or float16.
        m: float32, as the weights: mean of the gradient.
        v: float32, as the weights: mean of its square.
        shadows: none, or one per weight: a bfloat16 or float16 copy that follows the weight, or an
            empty tensor where there is none.
        decays: one per weight.
        schedule: [steps, 3] float32: learning rate, 1 / (1 - beta1^t), 1 / (1 - beta2^t), t from 1.
        step: [1] int64: the row of schedule; past the end it stands for the last.
        beta1: of the mean.
        beta2: of the mean of squares.
        epsilon: added to the root.
    """
    _kernels.adamw_step_(
        weights, gradients, m, v, shadows, decays, schedule, step, beta1, beta2, epsilon
    )


def sgd_step_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocity: Sequence[Tensor],
    shadows: Sequence[Tensor],
    decays: Sequence[float],
    schedule: Tensor,
    step: Tensor,
    momentum: float,
) -> None:
    """Take a step of SGD with momentum; arguments as for `adamw_step_`.

    Only the first column of schedule, the learning rate, is looked at.
    """
    _kernels.sgd_step_(weights, gradients, velocity, shadows, decays, schedule, step, momentum)


def tick_(clock: Tensor, loss: Tensor, loss_sum: Tensor, rows: int) -> None:
    """Move the clock by one step, and add its loss to the sum.

    Args:
        clock: [4] int64: cursor, step, seed, dropout's step; += rows, 1, 0, 1.
        loss: [] float32.
        loss_sum: [] float64.
        rows: of the batch.
    """
    _kernels.tick_(clock, loss, loss_sum, rows)


# Registration, once per process


def schemas() -> list[str]:
    """Return the operators' schemas, as csrc/schema.cpp has them."""
    calls = re.findall(r'm\.def\(\s*((?:"[^"]*"\s*)+)', SCHEMA.read_text(encoding="utf-8"))
    return ["".join(re.findall(r'"([^"]*)"', call)) for call in calls]


def _load() -> tuple[Literal["cuda", "cpu", "plain"], str]:
    """Load the library, or define the operators by plain.py; return which, and why not better."""
    try:
        build.load(build.find_or_build())
    except (toolchain.BuildError, OSError) as error:
        _define_plain()
        build.say(f"no kernels of our own, plain torch in their place: {error}")
        return "plain", str(error)
    return build.best()


def _define_plain() -> None:
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    for schema in schemas():
        name = schema.partition("(")[0]
        _library.define(schema, tags=tags)
        # no_grad: autograd would refuse to change a weight in place.
        _library.impl(name, torch.no_grad()(getattr(plain, name)), "CompositeExplicitAutograd")


# What operators return for tensors without data: shapes and types alone


def _fake_loss(outputs: Tensor, _target: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.new_empty((), dtype=_sum_type(outputs)), torch.empty_like(outputs)


def _fake_activation_backward(grad: Tensor, _y: Tensor, _p: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(grad), grad.new_empty(grad.shape[1], dtype=_sum_type(grad))


def _fake_gather(
    numeric: Tensor,
    categorical: Tensor,
    target: Tensor,
    _order: Tensor,
    _cursor: Tensor,
    _first_code: Tensor,
    weight: Tensor,
    rows: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    d, k, e = numeric.shape[1], categorical.shape[1], weight.shape[1]
    joined = numeric.new_empty((rows, d + k * e), dtype=dtype)
    return joined, categorical.new_empty((rows, k)), target.new_empty(rows)


def _fake_gather_backward(
    grad: Tensor, _codes: Tensor, _numeric: int, vocabulary: int, embedding: int
) -> Tensor:
    return grad.new_empty((vocabulary, embedding), dtype=torch.float32)


def _sum_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


FAKES: dict[str, Callable[..., Any]] = {
    "mulc_": lambda *_: None,
    "exp": torch.empty_like,
    "bias_relu_dropout": lambda x, *_: torch.empty_like(x),
    "bias_relu_dropout_backward": _fake_activation_backward,
    "softmax_cross_entropy": _fake_loss,
    "sigmoid_bce": _fake_loss,
    "mean_squared_error": _fake_loss,
    "gather_embed": _fake_gather,
    "gather_embed_backward": _fake_gather_backward,
    "adamw_step_": lambda *_: None,
    "sgd_step_": lambda *_: None,
    "tick_": lambda *_: None,
}


# Autograd: setup keeps what backward needs. A gradient arrives in any layout, kernels want one; it
# is None where nothing depends on the result, instead of zeros that would have to be filled.


def _exp_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(output)


def _exp_backward(ctx: Any, grad: Tensor) -> Tensor:
    (y,) = ctx.saved_tensors
    product: Tensor = grad * y
    return product


def _activation_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, bias, _, _, ctx.p, *_ = inputs
    ctx.bias_type = bias.dtype
    ctx.save_for_backward(output)


@once_differentiable
def _activation_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (y,) = ctx.saved_tensors
    grad_x, grad_bias = _kernels.bias_relu_dropout_backward(grad.contiguous(), y, ctx.p)
    return grad_x, grad_bias.to(ctx.bias_type), None, None, None, None, None


def _loss_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
    _, gradient = output
    ctx.mark_non_differentiable(gradient)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(gradient)


@once_differentiable
def _loss_backward(ctx: Any, grad_loss: Tensor | None, _: None) -> tuple[Tensor | None, None]:
    (gradient,) = ctx.saved_tensors
    return None if grad_loss is None else gradient * grad_loss, None


def _gather_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    numeric, *_, weight, _, _ = inputs
    _, codes, target = output
    ctx.mark_non_differentiable(codes, target)
    ctx.set_materialize_grads(False)
    ctx.numeric = numeric.shape[1]
    ctx.weight_shape = weight.shape
    ctx.save_for_backward(codes)


@once_differentiable
def _gather_backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    (codes,) = ctx.saved_tensors
    grad_weight = _kernels.gather_embed_backward(
        grad.contiguous(), codes, ctx.numeric, *ctx.weight_shape
    )
    return (*(None,) * 6, grad_weight, None, None)


AUTOGRAD: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (_exp_setup, _exp_backward),
    "bias_relu_dropout": (_activation_setup, _activation_backward),
    "softmax_cross_entropy": (_loss_setup, _loss_backward),
    "sigmoid_bce": (_loss_setup, _loss_backward),
    "mean_squared_error": (_loss_setup, _loss_backward),
    "gather_embed": (_gather_setup, _gather_backward),
}


def _register() -> None:
    for name, fake in FAKES.items():
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    for name, (setup, backward) in AUTOGRAD.items():
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", backward, setup_context=setup, lib=_library
        )


# What is registered lives as long as this object.
_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
IMPLEMENTATION, REASON = _load()
_register()
