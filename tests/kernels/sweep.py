"""Every kernel over sizes, types and alignments, in a process that sanitizers watch.

    LD_PRELOAD=$(g++ -print-file-name=libasan.so) python -m tests.kernels.sweep LIBRARY

AddressSanitizer sees accesses beyond an array's end, UndefinedBehaviorSanitizer sees wide ones at
addresses that don't allow them; either ends the process. The tests test_cuda_*.py check the values.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

from tests.kernels import operations as on
from tests.kernels.stand_in import Kernels, Type

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 255, 257, 1025, 4097, 12_289, 30_001)
SHAPES = (
    *((0, 3), (1, 1), (3, 1), (5, 3), (7, 8), (2, 32), (33, 33), (130, 20), (9, 520), (1100, 4)),
    *((3, 0), (3, 77), (3, 259), (3, 1016), (3, 1032)),
)
OFFSETS = (on.ALIGNED, (1,) * 5, (4,) * 5, *(tuple(np.eye(5, dtype=int)[i]) for i in range(5)))
random = np.random.default_rng(0)


def main() -> None:
    """Sweep over the kernels of the library that the command line names."""
    kernels = Kernels(Path(sys.argv[1]), sanitized=True)
    for sweep in (activations, losses, embeddings, optimizers):
        sweep(kernels)
    print(f"{kernels.launches} launches, and nothing found")


def activations(kernels: Kernels) -> None:
    """Bias, ReLU and dropout, and their backward pass."""
    for shape, kind, offsets in itertools.product(SHAPES, Type, OFFSETS):
        x, bias = random.normal(size=shape), random.normal(size=shape[1])
        for bias_kind in {kind, Type.FLOAT32}:
            on.bias_relu_dropout(kernels, x, bias, on.Dropout(p=0.5), (kind, bias_kind), offsets)
        on.bias_relu_dropout_backward(kernels, x, x, 0.5, kind, offsets)


def losses(kernels: Kernels) -> None:
    """Check the three losses."""
    for (rows, classes), kind, offsets in itertools.product(SHAPES, Type, OFFSETS):
        target = random.integers(-1, classes + 1, rows)
        on.softmax_cross_entropy(
            kernels, random.normal(size=(rows, classes)), target, kind, offsets
        )
    for rows, kind, offsets in itertools.product(SIZES, Type, OFFSETS):
        x, y = random.normal(size=(2, rows))
        for name in ("sigmoid_bce", "mean_squared_error"):
            on.pointwise_loss(kernels, name, x, y, kind, offsets)


def embeddings(kernels: Kernels) -> None:
    """Gathered batches and the backward pass, with codes and positions that don't exist too."""
    tables: tuple[tuple[list[int], int, int], ...] = (
        *(([], 3, 0), ([3], 0, 1), ([2, 5], 4, 8), ([2, 5], 4, 6), ([2, 5], 6, 4)),
        *(([1, 300, 4], 5, 3), ([7], 4, 44)),
    )
    for (vocabularies, numbers, embedding), kind, offsets in itertools.product(
        tables, Type, OFFSETS
    ):
        samples = on.some_samples(1, 700, numbers, vocabularies, embedding)
        samples.categorical[::7] = 1_000_000
        samples.categorical[1::7] = -1_000_000
        for rows, cursor in ((0, 0), (1, 5), (255, 600), (600, -3)):
            joined, codes, _ = on.gather_embed(kernels, samples, cursor, rows, kind, offsets)
            grad = np.ones(joined.shape)
            shape = (len(samples.weight), embedding)
            on.gather_embed_backward(kernels, grad, codes, numbers, shape, kind)


def optimizers(kernels: Kernels) -> None:
    """AdamW, SGD and the clock."""
    schedule = np.full((3, 3), 0.1, np.float32)
    for gradient, shadow, offsets in itertools.product(Type, (None, *list(Type)[1:]), OFFSETS):
        parameters = [
            on.some_parameter(kernels, size, size, offsets, gradient, shadow) for size in SIZES
        ]
        on.adamw_step(kernels, parameters, schedule, 1)
        on.sgd_step(kernels, parameters, schedule, 5, 0.9)
    clock, loss = kernels.array(np.zeros(4, np.int64)), kernels.array(np.ones(1, np.float32))
    kernels.launch("tick", clock, loss, kernels.array(np.zeros(1)), 256)


if __name__ == "__main__":
    main()
