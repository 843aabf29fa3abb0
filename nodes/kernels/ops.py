"""The operators as typed functions, which call our kernels or, without kernels, plain torch.

Importing this module loads the kernels, or builds them first. plain.py documents each operator.
IMPLEMENTATION is "cuda" (which includes kernels for the CPU), "cpu" or "plain", and REASON says why
it isn't "cuda".

- All tensors must be contiguous and on one device. In plain.py, "float" means float32, bfloat16 or
  float16. On the CPU it may also be float64, for tests. The kernels raise ValueError for any other
  tensor.
- A CUDA graph can capture every operator, because no operator waits for the device. So the CUDA
  kernels can't raise errors for values. If a categorical code or a class doesn't exist, they give
  NaN. The CPU kernels raise ValueError.
- The argument `order` of `gather_embed` must only have numbers of existing rows. The CUDA kernels
  don't check that.
- The same input gives the same bits, for any number of threads.
- Operators whose names end in _ change their arguments. Autograd does not record the change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trialfleet.nodes.kernels import build, plain, toolchain

NAMESPACE = "trialfleet"
SCHEMA = Path(__file__).parent / "csrc" / "schema.cpp"

_kernels: Any = torch.ops.trialfleet
Given = ParamSpec("Given")
Result = TypeVar("Result")


def loss_and_gradient(name: str, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss over the rows, and its gradient with respect to `outputs`.

    `name` is the operator that computes the loss, such as "sigmoid_bce".
    """
    # Without autograd, whose backward pass would only multiply the gradient by 1.
    both: tuple[Tensor, Tensor] = getattr(_kernels, name)(outputs.detach(), target)
    return both


# Registration, once per process


def schemas() -> list[str]:
    """Return the typed signatures of the operators, as csrc/schema.cpp declares them."""
    calls = re.findall(r'm\.def\(\s*((?:"[^"]*"\s*)+)', SCHEMA.read_text(encoding="utf-8"))
    return ["".join(re.findall(r'"([^"]*)"', call)) for call in calls]


def _load() -> tuple[Literal["cuda", "cpu", "plain"], str]:
    """Load the kernels, and return IMPLEMENTATION and REASON.

    Without a usable library, the functions of plain.py become the operators.
    """
    try:
        build.load(build.find_or_build())
    except (toolchain.BuildError, OSError) as error:
        _define_plain()
        build.print_progress(f"using plain torch instead of compiled kernels: {error}")
        return "plain", str(error)
    return build.best()


def _define_plain() -> None:
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    for schema in schemas():
        name = schema.partition("(")[0]
        _library.define(schema, tags=tags)
        # no_grad: autograd would refuse to change a weight in place.
        _library.impl(name, torch.no_grad()(getattr(plain, name)), "CompositeExplicitAutograd")


# Results of operators for tensors without data: only shapes and types


def _fake_loss(outputs: Tensor, _target: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.new_empty((), dtype=_sum_type(outputs)), torch.empty_like(outputs)


def _fake_activation_backward(grad: Tensor, _y: Tensor, _p: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(grad), grad.new_empty(grad.shape[1], dtype=_sum_type(grad))


def _fake_gather(
    numeric: Tensor, categorical: Tensor, target: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *_, weight, rows, dtype = others
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


# Autograd: `setup` keeps what `backward` needs. A gradient may arrive in any memory layout, but the
# kernels need it contiguous. If nothing depends on a result, its gradient is None, because zeros
# would have to be filled.


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
    "bias_relu_dropout": (_activation_setup, _activation_backward),
    "softmax_cross_entropy": (_loss_setup, _loss_backward),
    "sigmoid_bce": (_loss_setup, _loss_backward),
    "mean_squared_error": (_loss_setup, _loss_backward),
    "gather_embed": (_gather_setup, _gather_backward),
}


def _register_operators() -> None:
    for name, fake in FAKES.items():
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    for name, (setup, backward) in AUTOGRAD.items():
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", backward, setup_context=setup, lib=_library
        )


# The registrations last as long as this object.
_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
IMPLEMENTATION, REASON = _load()
_register_operators()


def _get_operator(implementation: Callable[Given, Result]) -> Callable[Given, Result]:
    return cast("Callable[Given, Result]", getattr(_kernels, implementation.__name__))


bias_relu_dropout = _get_operator(plain.bias_relu_dropout)
gather_embed = _get_operator(plain.gather_embed)
adamw_step_ = _get_operator(plain.adamw_step_)
sgd_step_ = _get_operator(plain.sgd_step_)
tick_ = _get_operator(plain.tick_)
