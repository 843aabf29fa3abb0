"""Every operator in plain torch, for machines without kernels and to test the kernels.

A CUDA graph can capture everything here, because nothing waits for the device. The functions
compute in float32 (in float64 for a float64 tensor), and round only the result to the tensor's
type. Invalid arguments lead to torch's own errors.

Shapes: a batch has b rows, a layer has h units, and a target has c classes. The table has n rows, d
numeric columns and k categorical columns. An embedding has e numbers, and there are v embeddings.

Random numbers are those of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", 2011).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


# Bias, activation, dropout


def bias_relu_dropout(
    x: Tensor, bias: Tensor, rng: Tensor, layer: int, p: float, offset: int = 0, width: int = 0
) -> Tensor:
    """Return max(x + bias, 0) with dropout, a tensor [b, h].

    Dropout sets a random share p of the elements to 0, and divides the others by 1 - p. The choice
    depends on p, rng, layer and the elements' indexes. It is the same on all devices.

    Args:
        x: [b, h] float, which may be a part of a larger array.
        bias: [h], float32 or x's type.
        rng: [2] int64, a seed, and a step number that must differ in each training step.
        layer: the layer's number in the network, 0 or more.
        p: dropout's probability, in [0, 1).
        offset: the row-major index of x's first element in the larger array.
        width: the number of columns of the larger array; 0 means as many as x has.
    """
    y = (_at_least_float32(x) + _at_least_float32(bias)).relu_()
    if p > 0:
        y = torch.where(dropout_mask(x.shape, rng, layer, p, offset, width), y * (1 / (1 - p)), 0)
    return y.to(x.dtype)


def bias_relu_dropout_backward(grad: Tensor, y: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return the gradients of `bias_relu_dropout` with respect to x and bias.

    y is that function's result, and grad is the gradient of y. The gradient of x [b, h] has x's
    type. The gradient of bias [h] is float32, or float64 if x is.
    """
    grad_x = torch.where(y > 0, _at_least_float32(grad) * (1 / (1 - p)), 0)
    return grad_x.to(grad.dtype), grad_x.sum(0)


def dropout_mask(
    shape: torch.Size, rng: Tensor, layer: int, p: float, offset: int = 0, width: int = 0
) -> Tensor:
    """Return a mask [rows, columns] that is True where dropout keeps an element.

    `shape` is (rows, columns). The other arguments are as for `bias_relu_dropout`.
    """
    # As in the kernels, an element's index i is offset + row · width + column. Eight elements share
    # the block of random numbers with the counter (i // 8, layer, step). A block has four words, or
    # eight halves. Element i uses half i % 8, where half 0 is the lower half of the first word.
    rows, columns = shape
    first = offset % 8  # whole blocks before it are skipped
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
    """Return four random words of 32 bits, each in an int64 tensor.

    They depend only on the four words of `counter` and the two words of `key` (Philox4x32-10).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply_wide(c0, MULTIPLIERS[0])
        high1, low1 = _multiply_wide(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return [c0, c1, c2, c3]


def _multiply_wide(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low 32 bits of the product word · multiplier."""
    low = word * (multiplier & 0xFFFF)  # half of the multiplier, so that products fit in int64
    high = word * (multiplier >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


# Losses: the mean over the rows, and its gradient


def softmax_cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy loss, float32 [], and its gradient with respect to logits.

    The loss is the mean of -log softmax(logits)[target] over the rows. logits is [b, c] float.
    target [b] int64 has the number of each row's class.
    """
    scores = functional.log_softmax(_at_least_float32(logits), 1)
    of_target = target.unsqueeze(1)
    loss = -scores.gather(1, of_target).mean()
    # Without scatter_add_: in deterministic mode it copies from the host, which no graph captures.
    classes = torch.arange(scores.shape[1], device=target.device)
    gradient = scores.exp_() - (classes == of_target).to(scores.dtype)
    return loss, (gradient / max(1, len(target))).to(logits.dtype)


def sigmoid_bce(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy loss, float32 [], and its gradient with respect to logits.

    The loss is the mean of log(1 + e^z) - z · target over the rows, where z is a row's logit.
    logits is [b] float, and target is [b] float32 in [0, 1].
    """
    z = _at_least_float32(logits)
    loss = (functional.relu(z) - z * target + torch.log1p(torch.exp(-z.abs()))).mean()
    gradient = (z.sigmoid() - target) / max(1, len(target))
    return loss, gradient.to(logits.dtype)


def mean_squared_error(outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean squared error, float32 [], and its gradient with respect to outputs."""
    difference = _at_least_float32(outputs) - target
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
    """Return the next batch: inputs [b, d + k * e], codes [b, k] int32, targets [b].

    The batch has b = `rows` rows of the table: those with the numbers order[cursor : cursor + b].
    If order is too short for this, its last number is repeated. A row's inputs are its numeric
    columns and the embeddings of its codes, in the type `dtype`. weight has the embeddings of all
    columns. A returned code is the number of a row of weight, unlike a code in categorical (see
    first_code). Only weight has a gradient. d and k may be 0.

        numeric     [n, d] float32           order       [m] int64, each in [0, n)
        categorical [n, k] int32             cursor      [1] int64
        target      [n] float32 or int64     weight      [v, e] float32
        first_code  [k] int32: column j's code c is row first_code[j] + c of weight
        dtype       float32, bfloat16 or float16
    """
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
    """Return the gradient of `gather_embed` for weight, [vocabulary, embedding] float32.

    `grad` is the gradient of the inputs that `gather_embed` returned together with `codes`. The
    first `numeric` columns of the inputs are not embeddings.
    """
    of_rows = grad[:, numeric:].float().reshape(codes.numel(), embedding)
    # index_add_ is not used, because it is not deterministic on both devices.
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
    """Update the weights by one step of AdamW, with the formula in nodes/tabular/optimizers.py.

    weights, m and v are float32. Gradients are float32, bfloat16 or float16. shadows has copies of
    the weights in bfloat16 or float16, which are updated, too. For a weight without a copy, shadows
    has an empty tensor. If no weight has a copy, shadows may be an empty list.

    A row of schedule [steps, 3] float32 has three numbers for a step t, counted from 1: the
    learning rate, 1 / (1 - beta1^t) and 1 / (1 - beta2^t). step [1] int64 is the index of the row
    to use. If it is too large, the last row is used.
    """
    rate, correction1, correction2 = _schedule_row(schedule, step)
    for w, gradient, mean, square, decay in zip(weights, gradients, m, v, decays, strict=True):
        g = gradient.float()
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (square * correction2).sqrt_().add_(epsilon)
        w.mul_(1 - rate * decay).sub_(mean / root * (rate * correction1))
    _update_shadows(weights, shadows)


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
    """Update the weights by one step of SGD with momentum.

    velocity is float32. The other arguments are as for `adamw_step_`. From schedule, only the
    learning rates schedule[:, 0] are used.
    """
    rate, _, _ = _schedule_row(schedule, step)
    for w, gradient, mean, decay in zip(weights, gradients, velocity, decays, strict=True):
        mean.mul_(momentum).add_(gradient)
        w.mul_(1 - rate * decay).sub_(mean * rate)
    _update_shadows(weights, shadows)


def _schedule_row(schedule: Tensor, step: Tensor) -> Sequence[Tensor]:
    row: Tensor = schedule.index_select(0, step.clamp(0, schedule.shape[0] - 1))
    return row.flatten().unbind()


def _update_shadows(weights: Sequence[Tensor], shadows: Sequence[Tensor]) -> None:
    for w, shadow in zip(weights, shadows, strict=bool(shadows)):
        if shadow.numel():
            shadow.copy_(w)


def tick_(clock: Tensor, loss: Tensor, loss_sum: Tensor, rows: int) -> None:
    """Count a training step in `clock`, and add the step's `loss` to `loss_sum`.

    clock [4] int64 has the cursor of `gather_embed`, the step's number in the epoch, dropout's seed
    and dropout's step number. The cursor grows by `rows`, and both step numbers grow by 1. loss is
    [] float32, and loss_sum is [] float64.
    """
    clock[:1].add_(rows)
    clock[1::2].add_(1)
    loss_sum.add_(loss)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
