"""Run every kernel once at awkward sizes; test_kernels_gpu.py has NVIDIA's sanitizer watch it.

python3 -m tests.gpu.every_kernel [--smallest] [--device cpu]
"""

from __future__ import annotations

import argparse

import torch

from tests.unit.kernels import kernel_cases as cases
from trialfleet.nodes.kernels import ops

SHAPES = [(1, 1), (33, 65), (257, 130)]
BATCHES = [(33, 5, 0, 4), (100, 0, 3, 7), (1000, 17, 9, 16)]  # rows, numeric, columns, embedding


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--smallest", action="store_true", help="the smaller of the sizes")
    reader.add_argument("--device", default="cuda:0")
    chosen = reader.parse_args()
    device, fewer = torch.device(chosen.device), -1 if chosen.smallest else None
    assert device.type == "cpu" or ops.IMPLEMENTATION == "cuda", ops.REASON
    for dtype in cases.FLOATS:
        for name, values in cases.arguments(dtype).items():
            run(device, name, *values)
        for rows, columns in SHAPES[:fewer]:
            x = cases.normal(rows, columns).to(dtype)
            y = cases.normal(rows, columns, seed=1).to(dtype)
            run(device, "bias_relu_dropout", x, x[0].float(), torch.tensor([1, 2]), 0, 0.5)
            run(device, "bias_relu_dropout_backward", x, y, 0.5)
            run(device, "softmax_cross_entropy", x, torch.arange(rows) % columns)
            for loss in ("sigmoid_bce", "mean_squared_error"):
                run(device, loss, x.flatten(), y.flatten().float())
        for rows, numeric, columns, embedding in BATCHES[:fewer]:
            given = cases.batch(rows, numeric, columns, embedding) | {"dtype": dtype}
            joined, codes, _ = run(device, "gather_embed", *given.values())
            shape = given["weight"].shape
            run(device, "gather_embed_backward", joined, codes, numeric, *shape)
        given = cases.step([(37, 21)] * 70, dtype, torch.float16)
        run(device, "adamw_step_", *given.values(), 0.9, 0.999, 1e-8)
    if device.type == "cuda":
        torch.cuda.synchronize()


def run(device: torch.device, name: str, *values: object) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        result: tuple[torch.Tensor, ...] = getattr(torch.ops.trialfleet, name)(
            *cases.on(device, values)
        )
    return result


if __name__ == "__main__":
    main()
