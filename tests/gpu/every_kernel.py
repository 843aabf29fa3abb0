"""Run every kernel once at awkward sizes; test_kernels_gpu.py has NVIDIA's sanitizer watch it."""

from __future__ import annotations

import torch

from tests.unit.kernels import kernel_cases as cases
from trialfleet.nodes.kernels import ops

GPU = torch.device("cuda", 0)


def main() -> None:
    assert ops.IMPLEMENTATION == "cuda", ops.REASON
    for dtype in cases.FLOATS:
        for name, values in cases.arguments(dtype).items():
            run(name, *values)
        for rows, columns in [(1, 1), (33, 65), (257, 130)]:
            x = cases.normal(rows, columns).to(dtype)
            y = cases.normal(rows, columns, seed=1).to(dtype)
            run("exp", x)
            run("bias_relu_dropout", x, x[0].float(), torch.tensor([1, 2]), 0, 0.5)
            run("bias_relu_dropout_backward", x, y, 0.5)
            run("softmax_cross_entropy", x, torch.arange(rows) % columns)
            for loss in ("sigmoid_bce", "mean_squared_error"):
                run(loss, x.flatten(), y.flatten().float())
        for rows, numeric, columns, embedding in [(33, 5, 0, 4), (100, 0, 3, 7), (1000, 17, 9, 16)]:
            given = cases.batch(rows, numeric, columns, embedding) | {"dtype": dtype}
            joined, codes, _ = run("gather_embed", *given.values())
            run("gather_embed_backward", joined, codes, numeric, *given["weight"].shape)
        given = cases.step([(37, 21)] * 70, dtype, torch.float16)
        run("adamw_step_", *given.values(), 0.9, 0.999, 1e-8)
    torch.cuda.synchronize()


def run(name: str, *values: object) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        result: tuple[torch.Tensor, ...] = getattr(torch.ops.trialfleet, name)(
            *cases.on(GPU, values)
        )
    return result


if __name__ == "__main__":
    main()
