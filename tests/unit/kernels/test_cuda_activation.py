"""The CUDA kernels at the end of a layer: Philox's random numbers, bias, ReLU and dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.kernels import operations as on
from tests.kernels.operations import Dropout, Offsets
from tests.kernels.stand_in import Array, Kernels, Type
from tests.unit.kernels.conftest import (
    assert_close,
    few,
    kinds,
    normal,
    offsets,
    probabilities,
    rounded,
    seeds,
    some_columns,
    some_rows,
    whole_numbers,
)

pytestmark = pytest.mark.slow


def philox(counters: Array, key: Sequence[int]) -> Array:
    """Return Philox4x32-10 of counters [..., 4], written down from the paper."""
    half, word = np.uint64(32), np.uint64(2**32 - 1)
    x0, x1, x2, x3 = (counters[..., i].astype(np.uint64) for i in range(4))
    for i in range(10):
        weyl = (0x9E3779B9, 0xBB67AE85)
        k0, k1 = (np.uint64((k + i * w) % 2**32) for k, w in zip(key, weyl, strict=True))
        a, b = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0, x1, x2, x3 = b >> half ^ x1 ^ k0, b & word, a >> half ^ x3 ^ k1, a & word
    return np.stack([x0, x1, x2, x3], -1)


def dropout_mask(dropout: Dropout, shape: tuple[int, int]) -> npt.NDArray[np.bool]:
    """Return dropout's mask: element i takes half i % 8 of the counter (i / 8, layer, step)."""
    rows, columns = shape
    width = columns + dropout.wider
    if dropout.offset or dropout.wider:  # cut out of the larger array's
        whole = (-(-dropout.offset // max(1, width)) + rows + 1, width)
        larger: npt.NDArray[np.bool] = dropout_mask(
            dataclasses.replace(dropout, offset=0, wider=0), whole
        ).ravel()
        first = dropout.offset + np.arange(rows)[:, None] * width
        return np.asarray(larger[first + np.arange(columns)])
    size = rows * columns
    groups = np.arange((size + 7) // 8, dtype=np.uint64)
    counters = np.zeros((len(groups), 4), np.uint64)
    counters[:, 0] = groups
    counters[:, 2:] = dropout.layer, dropout.step % 2**32
    words = philox(counters, (dropout.seed % 2**32, dropout.seed % 2**64 // 2**32))
    halves = np.stack([words % np.uint64(2**16), words // np.uint64(2**16)], -1)
    return (halves.ravel()[:size] >= int(dropout.p * 2**16)).reshape(shape)


@pytest.mark.parametrize(  # Random123's kat_vectors
    ("counter", "key", "answer"),
    [
        ("0" * 32, "0" * 16, "6627e8d5e169c58dbc57ac4c9b00dbd8"),
        ("f" * 32, "f" * 16, "408f276d41c83b0ea20bc7c66d5451fd"),
        (
            "243f6a8885a308d313198a2e03707344",
            "a4093822299f31d0",
            "d16cfe0994fdcceb5001e42024126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers(
    kernels: Kernels, counter: str, key: str, answer: str
) -> None:
    def words(text: str) -> list[int]:
        return [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]

    assert kernels.philox(words(counter), words(key)) == words(answer)
    assert philox(np.array(words(counter)), words(key)).tolist() == words(answer)


dropouts = st.builds(
    Dropout,
    p=probabilities,
    seed=st.integers(-(2**63), 2**63 - 1),
    step=st.integers(0, 2**40),
    layer=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 40),
    wider=st.sampled_from([0, 0, 8, 3]),
)


@given(
    shape=st.tuples(some_rows, some_columns),
    kinds=st.sampled_from([(x, b) for x in Type for b in {x, Type.FLOAT32}]),
    offsets=offsets,
    dropout=dropouts,
    seed=seeds,
)
@few
def test_bias_relu_dropout_equals_the_three_operations_in_sequence(
    kernels: Kernels,
    shape: tuple[int, int],
    kinds: tuple[Type, Type],
    offsets: Offsets,
    dropout: Dropout,
    seed: int,
) -> None:
    x, bias = normal(seed, *shape), normal(seed + 1, shape[1])
    shifted = rounded(x, kinds[0]) + rounded(bias, kinds[1])
    scale = 1 / (1 - dropout.p)
    [y] = kernels.in_any_order(
        lambda: [on.bias_relu_dropout(kernels, x, bias, dropout, kinds, offsets)]
    )
    assert_close(
        *(y, np.maximum(shifted, 0) * dropout_mask(dropout, shape) * scale, kinds[0]),
        passing=np.abs(x).max(initial=0) * scale,
    )


@given(shape=st.tuples(some_rows, some_columns), dropout=dropouts, kind=kinds, offsets=offsets)
@few
def test_dropouts_mask_equals_the_specified_mask_exactly(
    kernels: Kernels, shape: tuple[int, int], dropout: Dropout, kind: Type, offsets: Offsets
) -> None:
    ones = np.ones(shape)
    y = on.bias_relu_dropout(kernels, ones, np.ones(shape[1]), dropout, (kind, kind), offsets)
    np.testing.assert_array_equal(kind.decode(y) > 0, dropout_mask(dropout, shape))


@pytest.mark.parametrize("group", [0, 1, 2**32 - 1, 2**32, 2**61 - 1])
def test_dropouts_counter_contains_the_complete_group_number(kernels: Kernels, group: int) -> None:
    counter = np.array([group % 2**32, group // 2**32, 5, 6])
    wanted = philox(counter, (2**32 - 1, 2**32 - 1)).tolist()
    assert kernels.dropout_words(seed=-1, step=2**32 + 6, layer=5, group=group) == wanted


@pytest.mark.parametrize("element", [0, 1])
def test_an_element_exactly_at_the_threshold_is_kept(kernels: Kernels, element: int) -> None:
    [word, *_] = philox(np.zeros(4), (0, 0)).tolist()
    half = (word % 2**16, word // 2**16)[element]
    for p, wanted in ((half / 2**16, True), ((half + 1) / 2**16, False)):
        y = on.bias_relu_dropout(
            kernels, np.ones((1, 8)), np.zeros(8), Dropout(p=p), (Type.FLOAT32, Type.FLOAT32)
        )
        assert (y[0, element] > 0) == wanted


def test_a_relu_keeps_nan_and_positive_infinity(kernels: Kernels) -> None:
    x, nothing = np.array([[np.nan, np.inf, -np.inf, -0.0, 1.0]]), np.zeros(5)
    y = on.bias_relu_dropout(kernels, x, nothing, Dropout(), (Type.FLOAT32, Type.FLOAT32))
    np.testing.assert_array_equal(y, [[np.nan, np.inf, 0, 0, 1]])


@given(
    shape=st.tuples(some_rows, some_columns),
    kind=kinds,
    p=probabilities,
    offsets=offsets,
    seed=seeds,
)
@few
def test_the_backward_pass_derives_the_mask_from_the_output(
    kernels: Kernels, shape: tuple[int, int], kind: Type, p: float, offsets: Offsets, seed: int
) -> None:
    grad, y = whole_numbers(seed, *shape), np.maximum(normal(seed + 1, *shape), 0)
    wanted = grad * (rounded(y, kind) > 0) / (1 - p)
    grad_x, grad_bias = kernels.in_any_order(
        lambda: on.bias_relu_dropout_backward(kernels, grad, y, p, kind, offsets)
    )
    assert_close(grad_x, wanted, kind)
    assert_close(grad_bias, wanted.sum(0), Type.FLOAT32, passing=np.abs(wanted).sum())
    if p in {0.0, 0.5}:  # nothing was rounded on the way
        np.testing.assert_array_equal(grad_bias, wanted.sum(0))


@pytest.mark.parametrize("shape", [(1100, 128), (700, 16_400)])  # many stripes; the most of them
def test_the_bias_gradient_adds_up_every_stripe(kernels: Kernels, shape: tuple[int, int]) -> None:
    grad = whole_numbers(0, *shape)
    ones = np.ones(shape)
    _, grad_bias = on.bias_relu_dropout_backward(kernels, grad, ones, 0.5, Type.FLOAT32)
    np.testing.assert_array_equal(grad_bias, 2 * grad.sum(0))


def test_both_passes_agree_with_autograd(kernels: Kernels) -> None:
    dropout, both = Dropout(p=0.25, seed=-3, step=7, layer=2), (Type.FLOAT32, Type.FLOAT32)
    x, bias, grad = normal(0, 65, 33), normal(1, 33), normal(2, 65, 33)
    inputs = [torch.tensor(rounded(a, Type.FLOAT32), requires_grad=True) for a in (x, bias)]
    mask = torch.from_numpy(dropout_mask(dropout, x.shape))
    wanted = functional.relu(inputs[0] + inputs[1]) * mask / (1 - dropout.p)
    wanted.backward(torch.tensor(rounded(grad, Type.FLOAT32)))  # type: ignore[no-untyped-call]

    y = on.bias_relu_dropout(kernels, x, bias, dropout, both)
    grads = on.bias_relu_dropout_backward(kernels, grad, y, dropout.p, Type.FLOAT32)
    assert_close(y, wanted.detach().numpy(), Type.FLOAT32, passing=10)
    for mine, theirs in zip(grads, inputs, strict=True):
        assert theirs.grad is not None
        assert_close(mine, theirs.grad.numpy(), Type.FLOAT32, passing=100)
