"""Arguments and expected results of every operator, computed in float64 and by other means.

Used on the CPU (plain torch and C++) and, by tests/gpu, on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SEED, STEP = 0x0123456789ABCDEF, 0x1_0000_0007  # more than 32 bits each


def tolerance(dtype: torch.dtype) -> float:
    """Return how near a result rounded once must be, of its size."""
    return {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2 * torch.finfo(dtype).eps)


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    """Require nearness to a float64 reference, NaN for NaN."""
    near = tolerance(dtype or actual.dtype)
    torch.testing.assert_close(
        actual.double().cpu(), expected.cpu(), rtol=near, atol=near / 10, equal_nan=True
    )


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=random(seed), dtype=torch.float64)


# Dropout's random numbers, with Python's whole numbers


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10, as Random123's documentation puts it."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b % 2**32, (a >> 32) ^ c3 ^ k1, a % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def kept(shape: Sequence[int], seed: int, step: int, layer: int, p: float) -> Tensor:
    """Return dropout's mask."""
    size = torch.Size(shape).numel()
    key = (seed % 2**32, (seed >> 32) % 2**32)
    halves = [
        half
        for block in range((size + 7) // 8)
        for word in philox((block % 2**32, block >> 32, layer, step % 2**32), key)
        for half in (word % 2**16, word // 2**16)
    ]
    return torch.tensor([half >= int(p * 2**16) for half in halves[:size]]).bool().view(shape)


# Arguments by operator


def batch(
    rows: int, numeric: int, columns: int, embedding: int, target: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Return the arguments of gather_embed: 3 + j codes in column j, some of them in no row."""
    n = rows + 5
    sizes = torch.arange(columns) + 3
    codes = [torch.randint(0, int(size), (n,), generator=random(7)) for size in sizes]
    return {
        "numeric": normal(n, numeric, seed=1).float(),
        "categorical": torch.stack(codes, 1).int() if codes else torch.empty(n, 0).int(),
        "target": torch.randint(0, 9, (n,), generator=random(2)).to(target),
        "order": torch.randperm(n, generator=random(3)),
        "cursor": torch.tensor([2]),
        "first_code": (sizes.cumsum(0) - sizes).int(),
        "weight": normal(int(sizes.sum()), embedding, seed=4).float(),
        "rows": rows,
        "dtype": torch.float32,
    }


def step(
    shapes: Sequence[tuple[int, ...]] = ((3, 4), (5,), (), (0, 2)),
    gradients: torch.dtype = torch.float32,
    shadows: torch.dtype | None = None,
) -> dict[str, Any]:
    """Return what adamw_step_ and sgd_step_ have in common; every second weight has a shadow."""
    values = [normal(*shape, seed=i).float() for i, shape in enumerate(shapes)]
    empty = torch.empty(0, dtype=shadows)
    followed = [w.to(shadows) if i % 2 == 0 else empty for i, w in enumerate(values)]
    return {
        "weights": values,
        "gradients": [normal(*w.shape, seed=10 + i).to(gradients) for i, w in enumerate(values)],
        "m": [normal(*w.shape, seed=20 + i).float() for i, w in enumerate(values)],
        "v": [normal(*w.shape, seed=30 + i).float() ** 2 for i, w in enumerate(values)],
        "shadows": followed if shadows else [],
        "decays": [0.1 * (i % 3) for i in range(len(values))],
        "schedule": schedule(),
        "step": torch.tensor([3]),
    }


def schedule() -> Tensor:
    """Return five rows of learning rates and corrections, from step 1 on."""
    t = torch.arange(1, 6, dtype=torch.float64)
    return torch.stack([0.1 / t, 1 / (1 - 0.9**t), 1 / (1 - 0.999**t)], 1).float()


def arguments(dtype: torch.dtype = torch.float32) -> dict[str, tuple[Any, ...]]:
    """Return good arguments of each operator, by its name; floating inputs want a gradient."""
    x = normal(6, 5).to(dtype)
    codes = torch.randint(0, 7, (6, 2), generator=random(5)).int()
    common = step(gradients=dtype, shadows=torch.bfloat16)
    weights, gradients, m, v, shadows, decays, rates, row = common.values()
    gathered = batch(6, 3, 2, 4)
    gathered["weight"].requires_grad_()
    gathered["dtype"] = dtype
    return {
        "bias_relu_dropout": (
            x.clone().requires_grad_(),
            normal(5, seed=1).float().requires_grad_(),
            torch.tensor([SEED, STEP]),
            1,
            0.3,
            11,
            7,
        ),
        "bias_relu_dropout_backward": (x.clone(), x.clone().relu(), 0.3),
        "softmax_cross_entropy": (x.clone().requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 0])),
        "sigmoid_bce": (x[:, 0].clone().requires_grad_(), torch.rand(6, generator=random())),
        "mean_squared_error": (x[:, 0].clone().requires_grad_(), normal(6, seed=2).float()),
        "gather_embed": tuple(gathered.values()),
        "gather_embed_backward": (normal(6, 3 + 2 * 4).to(dtype), codes, 3, 7, 4),
        "adamw_step_": (weights, gradients, m, v, shadows, decays, rates, row, 0.9, 0.999, 1e-8),
        "sgd_step_": (weights, gradients, m, shadows, decays, rates, row, 0.9),
        "tick_": (torch.tensor([1, 2, 3, 4]), torch.tensor(0.5), torch.tensor(2.0).double(), 32),
    }


def large(rows: int, units: int) -> dict[str, tuple[Any, ...]]:
    """Arguments of such a size that threads, or a GPU's blocks, share the work, by operator."""
    of_step = list(step([(rows, units), (units,)], shadows=torch.bfloat16).values())
    x, y = normal(rows, units).float(), normal(rows, units, seed=1).float()
    flat, target = x.flatten(), y.flatten()
    codes = torch.randint(0, 2000, (rows, 4), generator=random())
    codes = (codes + 2000 * torch.arange(4)).int()  # no two columns share one
    return {
        "bias_relu_dropout": (x, x[0].clone(), torch.tensor([1, 2]), 3, 0.5),
        "bias_relu_dropout_backward": (x, y, 0.5),
        "softmax_cross_entropy": (x, torch.arange(rows) % units),
        "sigmoid_bce": (flat, target),
        "mean_squared_error": (flat, target),
        "gather_embed": tuple(batch(10 * rows, 9, 4, 16).values()),
        "gather_embed_backward": (normal(rows, 196).float(), codes, 4, 9000, 48),
        "adamw_step_": (*of_step, 0.9, 0.999, 1e-8),
        "sgd_step_": (*of_step[:3], *of_step[4:], 0.9),
        "tick_": arguments()["tick_"],
    }


def on(device: str | torch.device, value: Any) -> Any:
    """Return a copy of arguments, its tensors on a device, with whatever wish for gradients."""
    if isinstance(value, Tensor):
        return value.detach().clone().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(on(device, part) for part in value)
    if isinstance(value, dict):
        return {name: on(device, part) for name, part in value.items()}
    return value


# Their expected results, in float64


def activation(x: Tensor, bias: Tensor, mask: Tensor, p: float) -> Tensor:
    """Return bias_relu_dropout's result."""
    return (x.double() + bias.double()).relu() * mask / (1 - p)


def with_gradient(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a loss and its gradient by autograd."""
    wide = outputs.detach().double().requires_grad_()
    value = loss(wide, target if target.dtype == torch.int64 else target.double())
    value.backward()  # type: ignore[no-untyped-call]
    assert wide.grad is not None
    return value.detach(), wide.grad


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax_cross_entropy": functional.cross_entropy,
    "sigmoid_bce": functional.binary_cross_entropy_with_logits,
    "mean_squared_error": functional.mse_loss,
}


def gathered(given: dict[str, Any], weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return gather_embed's batch, row by row; weight is given's, maybe in another type."""
    order, last = given["order"], len(given["order"]) - 1
    rows, targets = [], []
    for i in range(given["rows"]):
        sample = order[min(int(given["cursor"]) + i, last)]
        codes = (given["categorical"][sample] + given["first_code"]).tolist()
        rows.append(torch.cat([given["numeric"][sample].double(), *[weight[c] for c in codes]]))
        targets.append(given["target"][sample])
    width = given["numeric"].shape[1] + given["categorical"].shape[1] * weight.shape[1]
    empty = torch.empty(0, width, dtype=torch.float64)
    return torch.stack(rows) if rows else empty, torch.tensor(targets, dtype=given["target"].dtype)


def adamw(given: dict[str, Any], beta1: float, beta2: float, epsilon: float) -> list[list[Tensor]]:
    """Return the new weights, means and squares, by the formulas of nodes/tabular/optimizers.py."""
    rate, correction1, correction2 = given["schedule"][int(given["step"])].double()
    result: list[list[Tensor]] = [[], [], []]
    for w, g, m, v, decay in _parts(given):
        mean = beta1 * m + (1 - beta1) * g
        square = beta2 * v + (1 - beta2) * g**2
        root = (square * correction2).sqrt() + epsilon
        moved = w * (1 - rate * decay) - rate * mean * correction1 / root
        for values, value in zip(result, (moved, mean, square), strict=True):
            values.append(value)
    return result


def sgd(given: dict[str, Any], momentum: float) -> list[list[Tensor]]:
    """Return the new weights and velocities, by the formulas of nodes/tabular/optimizers.py."""
    rate = given["schedule"][int(given["step"])][0].double()
    velocities = [momentum * m + g for _, g, m, _, _ in _parts(given)]
    moved = [
        w * (1 - rate * decay) - rate * velocity
        for (w, _, _, _, decay), velocity in zip(_parts(given), velocities, strict=True)
    ]
    return [moved, velocities]


def _parts(given: dict[str, Any]) -> list[tuple[Tensor, Tensor, Tensor, Tensor, float]]:
    lists = [[x.double() for x in given[n]] for n in ("weights", "gradients", "m", "v")]
    return list(zip(*lists, given["decays"], strict=True))
