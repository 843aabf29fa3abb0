"""Every operator by pure torch: what the kernels are tested against, and what stands in for them.

Nothing here waits for the device or looks at its values, so all of it can be captured in a CUDA
graph. Arithmetic is float32, or float64 for a float64 tensor; results are rounded once.

Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if __package__ == "trialfleet.nodes.kernels":
    from trialfleet.nodes.kernels.checks import ANY, F32, FLOATS, I32, I64, Arguments
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    from kernels.checks import ANY, F32, FLOATS, I32, I64, Arguments

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def mulc_(x: Tensor, c: float) -> None:
    """Multiply x by c, in place."""
    arguments = Arguments("mulc_", x.device)
    arguments.tensor("x", x, arguments.floats)
    x.mul_(c)


def exp(x: Tensor) -> Tensor:
    """Return e to the power of each element."""
    arguments = Arguments("exp", x.device)
    arguments.tensor("x", x, arguments.floats)
    return x.exp()


# Bias, activation, dropout


def bias_relu_dropout(
    x: Tensor, bias: Tensor, rng: Tensor, layer: int, p: float, offset: int = 0, width: int = 0
) -> Tensor:
    """Return max(x + bias, 0) · kept / (1 - p), of x's shape and type."""
    arguments = Arguments("bias_relu_dropout", x.device)
    arguments.tensor("x", x, arguments.floats, (ANY, ANY))
    arguments.tensor("bias", bias, tuple({torch.float32: 0, x.dtype: 0}), (x.shape[1],))
    arguments.tensor("rng", rng, I64, (2,))
    in_range = 0 <= layer < 2**32
    arguments.require(met=in_range, argument="layer", wanted="in [0, 2^32)", given=layer)
    arguments.share(p)
    arguments.not_negative(offset=offset)
    is_wide = width == 0 or width >= x.shape[1]
    wanted = "0 or at least the columns of x"
    arguments.require(met=is_wide, argument="width", wanted=wanted, given=width)
    y = (_wide(x) + _wide(bias)).relu_()
    if p > 0:
        y = torch.where(kept(x.shape, rng, layer, p, offset, width), y * (1 / (1 - p)), 0)
    return y.to(x.dtype)


def bias_relu_dropout_backward(grad: Tensor, y: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, in its type, and of the bias [h], not yet rounded."""
    arguments = Arguments("bias_relu_dropout_backward", grad.device)
    arguments.tensor("grad", grad, arguments.floats, (ANY, ANY))
    arguments.tensor("y", y, (grad.dtype,), tuple(grad.shape))
    arguments.share(p)
    grad_x = torch.where(y > 0, _wide(grad) * (1 / (1 - p)), 0)
    return grad_x.to(grad.dtype), grad_x.sum(0)


def kept(
    shape: torch.Size, rng: Tensor, layer: int, p: float, offset: int = 0, width: int = 0
) -> Tensor:
    """Return dropout's mask [rows, columns], true where an element stays.

    Element i has half i % 8, the lower half of each word first, of the block with the counter
    (i // 8, layer, step), as the kernels do. `offset` and `width` say which i the elements have:
    offset + row · width + column.
    """
    rows, columns = shape
    first = offset % 8  # whole blocks before it are left out
    width = width or columns
    elements = first + max(0, rows - 1) * width + columns
    block = offset // 8 + torch.arange((elements + 7) // 8, device=rng.device)
    seed, step = rng.unbind()
    counter = [block & WORD, block >> 32, torch.full_like(block, layer), (step & WORD) + block * 0]
    words = torch.stack(philox(counter, [seed & WORD, (seed >> 32) & WORD]), 1)  # [blocks, 4]
    halves = torch.stack([words & 0xFFFF, words >> 16], 2)  # [blocks, 4, 2]
    row = torch.arange(rows, device=rng.device)[:, None] * width
    place = first + row + torch.arange(columns, device=rng.device)
    return halves.flatten()[place] >= int(p * 2**16)


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> list[Tensor]:
    """Return the four 32-bit words of Philox4x32-10, each in an int64 tensor."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return [c0, c1, c2, c3]


def _multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of a product, by halves, as int64 has a sign."""
    low = word * (multiplier & 0xFFFF)
    high = word * (multiplier >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


# Losses: the mean over the rows, and its gradient


def softmax_cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of -log softmax(logits)[target], and its gradient."""
    arguments = Arguments("softmax_cross_entropy", logits.device)
    arguments.tensor("logits", logits, arguments.floats, (ANY, ANY))
    arguments.tensor("target", target, I64, (logits.shape[0],))
    scores = functional.log_softmax(_wide(logits), 1)
    of_target = target.unsqueeze(1)
    loss = -scores.gather(1, of_target).mean()
    # scatter_add_ copies from the host where torch must be deterministic: no graph captures that.
    classes = torch.arange(scores.shape[1], device=target.device)
    gradient = scores.exp_() - (classes == of_target).to(scores.dtype)
    return loss, (gradient / max(1, len(target))).to(logits.dtype)


def sigmoid_bce(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of log(1 + e^z) - z · target, and its gradient."""
    arguments = Arguments("sigmoid_bce", logits.device)
    arguments.tensor("logits", logits, arguments.floats, (ANY,))
    arguments.tensor("target", target, F32, tuple(logits.shape))
    z = _wide(logits)
    loss = (functional.relu(z) - z * target + torch.log1p(torch.exp(-z.abs()))).mean()
    gradient = (z.sigmoid() - target) / max(1, len(target))
    return loss, gradient.to(logits.dtype)


def mean_squared_error(outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of (outputs - target)², and its gradient."""
    arguments = Arguments("mean_squared_error", outputs.device)
    arguments.tensor("outputs", outputs, arguments.floats, (ANY,))
    arguments.tensor("target", target, F32, tuple(outputs.shape))
    difference = _wide(outputs) - target
    gradient = difference * (2 / max(1, len(target)))
    return difference.square().mean(), gradient.to(outputs.dtype)


# The batch


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the batch at the cursor: joined [rows, d + k·e], codes [rows, k], target [rows]."""
    arguments = Arguments("gather_embed", numeric.device)
    arguments.tensor("numeric", numeric, F32, (ANY, ANY))
    n = numeric.shape[0]
    arguments.tensor("categorical", categorical, I32, (n, ANY))
    arguments.tensor("target", target, (torch.float32, torch.int64), (n,))
    arguments.tensor("order", order, I64, (ANY,))
    arguments.tensor("cursor", cursor, I64, (1,))
    arguments.tensor("first_code", first_code, I32, (categorical.shape[1],))
    arguments.tensor("weight", weight, F32, (ANY, ANY))
    arguments.not_negative(rows=rows)
    some = rows == 0 or order.numel() > 0
    arguments.require(met=some, argument="order", wanted="of at least one row", given="empty")
    arguments.dtype(dtype)
    last = order.shape[0] - 1
    positions = (cursor + torch.arange(rows, device=cursor.device)).clamp(0, max(0, last))
    chosen = order.index_select(0, positions)
    codes = categorical.index_select(0, chosen) + first_code
    embedded = weight.index_select(0, codes.flatten()).view(rows, codes.shape[1] * weight.shape[1])
    joined = torch.cat([numeric.index_select(0, chosen), embedded], 1)
    return joined.to(dtype), codes, target.index_select(0, chosen)


def gather_embed_backward(
    grad: Tensor, codes: Tensor, numeric: int, vocabulary: int, embedding: int
) -> Tensor:
    """Return the gradient of the embedding's weight, [vocabulary, embedding] float32."""
    arguments = Arguments("gather_embed_backward", grad.device)
    arguments.not_negative(numeric=numeric, vocabulary=vocabulary, embedding=embedding)
    arguments.tensor("codes", codes, I32, (ANY, ANY))
    rows, k = codes.shape
    arguments.tensor("grad", grad, FLOATS, (rows, numeric + k * embedding))
    of_rows = grad[:, numeric:].float().reshape(codes.numel(), embedding)
    # Deterministic on both devices, which index_add_ is not.
    grad_weight: Tensor = torch.ops.aten.embedding_dense_backward(
        of_rows, codes.flatten(), vocabulary, padding_idx=-1, scale_grad_by_freq=False
    )
    return grad_weight


# The step


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
    """Take a step of AdamW."""
    arguments = Arguments("adamw_step_", schedule.device)
    arguments.lists(weights, gradients=gradients, m=m, v=v, decays=decays)
    arguments.schedule(schedule, step)
    arguments.weights(weights, gradients, shadows)
    for i, weight in enumerate(weights):
        shape = tuple(weight.shape)
        arguments.tensor(f"m[{i}]", m[i], F32, shape)
        arguments.tensor(f"v[{i}]", v[i], F32, shape)
    rate, correction1, correction2 = _at(schedule, step)
    for w, gradient, mean, square, decay in zip(weights, gradients, m, v, decays, strict=True):
        g = gradient.float()
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (square * correction2).sqrt_().add_(epsilon)
        w.mul_(1 - rate * decay).sub_(mean / root * (rate * correction1))
    _cast(weights, shadows)


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
    """Take a step of SGD with momentum."""
    arguments = Arguments("sgd_step_", schedule.device)
    arguments.lists(weights, gradients=gradients, velocity=velocity, decays=decays)
    arguments.schedule(schedule, step)
    arguments.weights(weights, gradients, shadows)
    for i, weight in enumerate(weights):
        arguments.tensor(f"velocity[{i}]", velocity[i], F32, tuple(weight.shape))
    rate, _, _ = _at(schedule, step)
    for w, gradient, mean, decay in zip(weights, gradients, velocity, decays, strict=True):
        mean.mul_(momentum).add_(gradient)
        w.mul_(1 - rate * decay).sub_(mean * rate)
    _cast(weights, shadows)


def _at(schedule: Tensor, step: Tensor) -> Sequence[Tensor]:
    row: Tensor = schedule.index_select(0, step.clamp(0, schedule.shape[0] - 1))
    return row.flatten().unbind()


def _cast(weights: Sequence[Tensor], shadows: Sequence[Tensor]) -> None:
    for w, shadow in zip(weights, shadows, strict=bool(shadows)):
        if shadow.numel():
            shadow.copy_(w)


def tick_(clock: Tensor, loss: Tensor, loss_sum: Tensor, rows: int) -> None:
    """Move the clock by a step of so many rows, and add its loss to the sum."""
    arguments = Arguments("tick_", clock.device)
    arguments.tensor("clock", clock, I64, (4,))
    arguments.tensor("loss", loss, F32, ())
    arguments.tensor("loss_sum", loss_sum, (torch.float64,), ())
    arguments.not_negative(rows=rows)
    clock[:1].add_(rows)
    clock[1::2].add_(1)
    loss_sum.add_(loss)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
