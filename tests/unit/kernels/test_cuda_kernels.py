"""The CUDA kernels: run on the CPU by tests/kernels/stand_in_cuda, and compiled by nvcc."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.kernels import operations as on
from tests.kernels.operations import Dropout, Floats, Offsets
from tests.kernels.stand_in import (
    CUDA,
    ROOT,
    Array,
    Kernels,
    LaunchError,
    Type,
    build,
    build_program,
)
from trialfleet.nodes.tabular.optimizers import Optimizer
from trialfleet.nodes.tabular.settings import Settings

pytestmark = pytest.mark.slow
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ to build them with")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")

few = hypothesis_settings(max_examples=40)

edges = (1, 4, 8, 32, 256, 1024, 4096, 3 * 4096, 3 * 8192, 6 * 8192)  # packs, blocks, grids
sizes = st.sampled_from([0, *(edge + d for edge in edges for d in (-1, 0, 1))])
some_rows = st.sampled_from([0, 1, 2, 31, 32, 33, 255, 256, 257, 700])
some_columns = st.sampled_from([1, 2, 3, 4, 5, 8, 10, 16, 31, 32, 33, 64, 100, 256, 260])
kinds = st.sampled_from(list(Type))
offsets = st.one_of(
    st.integers(0, 8).map(lambda offset: (offset,) * 5),
    st.tuples(*[st.sampled_from([0, 0, 1, 4])] * 5),
)
seeds = st.integers(0, 2**32)
probabilities = st.sampled_from([0.0, 0.1, 0.5, 0.999])


def folder_for(request: pytest.FixtureRequest, name: str) -> Path:
    """Return where a build is kept from one run of the tests to the next."""
    cache = request.config.cache
    assert cache, "these tests keep their builds in pytest's cache"
    return Path(cache.mkdir(f"cuda-kernels-{name}"))


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if not shutil.which("g++"):
        pytest.skip("no g++ to build the kernels with")
    return Kernels(build(folder_for(request, "plain")))


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape)


def whole_numbers(seed: int, *shape: int) -> Floats:
    """Return small integers: float32 adds them up exactly, in any order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float64)


def rounded(values: Floats, kind: Type) -> Floats:
    """Return what a kernel sees of `values`, as float64."""
    return kind.decode(kind.encode(values)).astype(np.float64)


def assert_close(stored: Array, wanted: Floats, kind: Type, passing: float = 0.0) -> None:
    """`stored` is `wanted` but for some roundings in float32 and the last one, to `kind`.

    `passing` is the largest number that a rounding may have met on the way.
    """
    last = kind.epsilon if kind is not Type.FLOAT32 else 0.0
    relative = 4 * Type.FLOAT32.epsilon + last
    absolute = 2 * kind.tiny + 4 * Type.FLOAT32.epsilon * passing
    np.testing.assert_allclose(kind.decode(stored), wanted, rtol=relative, atol=absolute)


# Philox; bias, ReLU and dropout


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


def kept(dropout: Dropout, shape: tuple[int, int]) -> npt.NDArray[np.bool]:
    """Return dropout's mask: element i takes half i % 8 of the counter (i / 8, layer, step)."""
    rows, columns = shape
    width = columns + dropout.wider
    if dropout.offset or dropout.wider:  # cut out of the larger array's
        whole = (-(-dropout.offset // max(1, width)) + rows + 1, width)
        larger: npt.NDArray[np.bool] = kept(
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
def test_bias_relu_dropout_is_each_of_them_in_turn(
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
        *(y, np.maximum(shifted, 0) * kept(dropout, shape) * scale, kinds[0]),
        passing=np.abs(x).max(initial=0) * scale,
    )


@given(shape=st.tuples(some_rows, some_columns), dropout=dropouts, kind=kinds, offsets=offsets)
@few
def test_dropouts_mask_is_the_contracts_to_the_bit(
    kernels: Kernels, shape: tuple[int, int], dropout: Dropout, kind: Type, offsets: Offsets
) -> None:
    ones = np.ones(shape)
    y = on.bias_relu_dropout(kernels, ones, np.ones(shape[1]), dropout, (kind, kind), offsets)
    np.testing.assert_array_equal(kind.decode(y) > 0, kept(dropout, shape))


@pytest.mark.parametrize("group", [0, 1, 2**32 - 1, 2**32, 2**61 - 1])
def test_dropouts_counter_has_all_of_the_group(kernels: Kernels, group: int) -> None:
    counter = np.array([group % 2**32, group // 2**32, 5, 6])
    wanted = philox(counter, (2**32 - 1, 2**32 - 1)).tolist()
    assert kernels.dropout_words(seed=-1, step=2**32 + 6, layer=5, group=group) == wanted


@pytest.mark.parametrize("element", [0, 1])
def test_half_a_word_that_equals_the_threshold_is_kept(kernels: Kernels, element: int) -> None:
    [word, *_] = philox(np.zeros(4), (0, 0)).tolist()
    half = (word % 2**16, word // 2**16)[element]
    for p, wanted in ((half / 2**16, True), ((half + 1) / 2**16, False)):
        y = on.bias_relu_dropout(
            kernels, np.ones((1, 8)), np.zeros(8), Dropout(p=p), (Type.FLOAT32, Type.FLOAT32)
        )
        assert (y[0, element] > 0) == wanted


def test_nan_and_infinity_go_through_a_relu(kernels: Kernels) -> None:
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
def test_the_backward_pass_reads_the_mask_off_y(
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
def test_a_biass_gradient_has_every_stripe(kernels: Kernels, shape: tuple[int, int]) -> None:
    grad = whole_numbers(0, *shape)
    ones = np.ones(shape)
    _, grad_bias = on.bias_relu_dropout_backward(kernels, grad, ones, 0.5, Type.FLOAT32)
    np.testing.assert_array_equal(grad_bias, 2 * grad.sum(0))


def test_both_passes_agree_with_autograd(kernels: Kernels) -> None:
    dropout, both = Dropout(p=0.25, seed=-3, step=7, layer=2), (Type.FLOAT32, Type.FLOAT32)
    x, bias, grad = normal(0, 65, 33), normal(1, 33), normal(2, 65, 33)
    inputs = [torch.tensor(rounded(a, Type.FLOAT32), requires_grad=True) for a in (x, bias)]
    mask = torch.from_numpy(kept(dropout, x.shape))
    wanted = functional.relu(inputs[0] + inputs[1]) * mask / (1 - dropout.p)
    wanted.backward(torch.tensor(rounded(grad, Type.FLOAT32)))  # type: ignore[no-untyped-call]

    y = on.bias_relu_dropout(kernels, x, bias, dropout, both)
    grads = on.bias_relu_dropout_backward(kernels, grad, y, dropout.p, Type.FLOAT32)
    assert_close(y, wanted.detach().numpy(), Type.FLOAT32, passing=10)
    for mine, theirs in zip(grads, inputs, strict=True):
        assert theirs.grad is not None
        assert_close(mine, theirs.grad.numpy(), Type.FLOAT32, passing=100)


# Losses


def torch_loss(
    loss: Callable[..., torch.Tensor], outputs: Floats, target: Array, kind: Type
) -> tuple[Floats, Floats]:
    """Return the loss and its gradient by torch in float64, of what the kernel sees."""
    x = torch.tensor(rounded(outputs, kind), requires_grad=True)
    wanted = torch.from_numpy(target)
    value = loss(x, wanted if target.dtype == np.int64 else wanted.double())
    value.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return value.detach().numpy(), x.grad.numpy()


@given(
    rows=some_rows.filter(bool),
    classes=some_columns,
    kind=kinds,
    offsets=offsets,
    seed=seeds,
    spread=st.sampled_from([1.0, 100.0]),
)
@example(33, 77, Type.FLOAT32, on.ALIGNED, 0, 1.0)  # single elements, several a lane
@example(33, 259, Type.BFLOAT16, on.ALIGNED, 0, 1.0)  # too many of them for the registers
@example(9, 1024, Type.FLOAT32, on.ALIGNED, 0, 100.0)  # as many packs as the registers hold
@example(9, 1016, Type.BFLOAT16, on.ALIGNED, 0, 1.0)  # some lanes have a pack less
@example(9, 1016, Type.FLOAT16, (1,) * 5, 0, 1.0)
@example(9, 1032, Type.FLOAT32, on.ALIGNED, 0, 1.0)
@few
def test_softmax_cross_entropy_is_torchs(
    kernels: Kernels,
    rows: int,
    classes: int,
    kind: Type,
    offsets: Offsets,
    seed: int,
    spread: float,
) -> None:
    logits = spread * normal(seed, rows, classes)
    target = np.random.default_rng(seed).integers(0, classes, rows)
    wanted_loss, wanted_grad = torch_loss(functional.cross_entropy, logits, target, kind)
    loss, grad = kernels.in_any_order(
        lambda: on.softmax_cross_entropy(kernels, logits, target, kind, offsets)
    )
    assert_close(loss[0], wanted_loss, Type.FLOAT32, passing=np.abs(logits).max())
    assert_close(grad, wanted_grad, kind, passing=np.abs(logits).max() / rows)


@pytest.mark.parametrize("wrong", [-1, 3, -(2**62), 2**62])
def test_a_class_that_does_not_exist_makes_the_loss_nan(kernels: Kernels, wrong: int) -> None:
    target = np.array([0, wrong, 2])
    loss, grad = on.softmax_cross_entropy(kernels, np.zeros((3, 3)), target, Type.FLOAT32)
    assert np.isnan(loss).all()
    assert np.isnan(grad).all(axis=1).tolist() == [False, True, False]


@given(rows=some_rows.filter(bool), classes=some_columns, kind=kinds, seed=seeds)
@example(9, 1016, Type.BFLOAT16, 0)
@few
def test_the_bits_of_softmax_hang_on_no_alignment(
    kernels: Kernels, rows: int, classes: int, kind: Type, seed: int
) -> None:
    logits = normal(seed, rows, classes)
    target = np.random.default_rng(seed).integers(0, classes, rows)
    results = [
        on.softmax_cross_entropy(kernels, logits, target, kind, offsets)
        for offsets in (on.ALIGNED, (1,) * 5, (0, 1, 0, 0, 0))
    ]
    assert len({(loss.tobytes(), grad.tobytes()) for loss, grad in results}) == 1


def test_without_classes_every_target_is_wrong(kernels: Kernels) -> None:
    loss, _ = on.softmax_cross_entropy(kernels, np.zeros((3, 0)), np.zeros(3), Type.FLOAT32)
    assert np.isnan(loss).all()


def test_logits_beyond_exp_are_no_matter(kernels: Kernels) -> None:
    logits = np.array([[1e30, 0.0], [-1e30, 0.0], [1e4, 1e4]])
    loss, grad = on.softmax_cross_entropy(kernels, logits, np.array([0, 1, 1]), Type.FLOAT32)
    np.testing.assert_allclose(loss, np.log(2) / 3, rtol=1e-6)
    np.testing.assert_allclose(grad, np.array([[0, 0], [0, 0], [0.5, -0.5]]) / 3, rtol=1e-6)
    logits, target = np.array([1e30, -1e30, 1e4, 0.0]), np.array([1.0, 0.0, 1.0, 0.5])
    loss, grad = on.pointwise_loss(kernels, "sigmoid_bce", logits, target, Type.FLOAT32)
    np.testing.assert_allclose(loss, np.log(2) / 4, rtol=1e-6)
    np.testing.assert_array_equal(grad, 0)


POINTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "sigmoid_bce": functional.binary_cross_entropy_with_logits,
    "mean_squared_error": functional.mse_loss,
}


@given(
    name=st.sampled_from([*POINTWISE]),
    rows=sizes.filter(bool),
    kind=kinds,
    offsets=offsets,
    seed=seeds,
)
@few
def test_losses_of_one_output_are_torchs(
    kernels: Kernels, name: str, rows: int, kind: Type, offsets: Offsets, seed: int
) -> None:
    outputs = 5 * normal(seed, rows)
    target = np.random.default_rng(seed).integers(0, 2, rows).astype(np.float32)
    wanted_loss, wanted_grad = torch_loss(POINTWISE[name], outputs, target, kind)
    loss, grad = kernels.in_any_order(
        lambda: on.pointwise_loss(kernels, name, outputs, target, kind, offsets)
    )
    assert_close(loss[0], wanted_loss, Type.FLOAT32, passing=np.abs(outputs).max())
    assert_close(grad, wanted_grad, kind, passing=np.abs(outputs).max() / rows)


@pytest.mark.parametrize("logit", [5.0, 20.0, 60.0])
def test_a_small_loss_is_as_exact_as_a_large_one(kernels: Kernels, logit: float) -> None:
    logits, target = np.array([logit, -logit]), np.array([1.0, 0.0])
    loss, grad = on.pointwise_loss(kernels, "sigmoid_bce", logits, target, Type.FLOAT32)
    np.testing.assert_allclose(loss, np.log1p(np.exp(-logit)), rtol=1e-6)
    np.testing.assert_allclose(grad[1], 0.5 / (1 + np.exp(logit)), rtol=1e-6)


# Batches and embeddings

tables = st.tuples(
    st.sampled_from([0, 1, 4, 7]),  # numbers
    st.lists(st.sampled_from([1, 2, 7, 300]), max_size=4),  # vocabularies
    st.sampled_from([1, 3, 4, 8, 40]),  # embedding
)


def batch_of(samples: on.Samples, cursor: int, rows: int) -> Array:
    """Return the samples of a batch; positions outside the order are its first and last."""
    return samples.order[np.clip(np.arange(cursor, cursor + rows), 0, len(samples.order) - 1)]


@given(
    table=tables,
    rows=some_rows,
    cursor=st.sampled_from([-2, 0, 1, 299, 10**12]),
    kind=kinds,
    offsets=offsets,
    seed=seeds,
    target=st.sampled_from([np.float32, np.int64]),
)
@example((4, [2, 3], 6), 33, 1, Type.FLOAT32, on.ALIGNED, 0, np.float32)  # rows end within packs
@example((6, [2, 3], 4), 33, 1, Type.FLOAT32, on.ALIGNED, 0, np.float32)
@example((4, [2, 3], 8), 33, 1, Type.FLOAT32, on.ALIGNED, 0, np.int64)
@example((4, [], 6), 33, 1, Type.FLOAT32, on.ALIGNED, 0, np.int64)  # packs all the same
@few
def test_a_batch_is_gathered_and_embedded(
    kernels: Kernels,
    table: tuple[int, list[int], int],
    rows: int,
    cursor: int,
    kind: Type,
    offsets: Offsets,
    seed: int,
    target: type,
) -> None:
    numbers, vocabularies, embedding = table
    made = on.some_samples(seed, 300, numbers, vocabularies, embedding)
    samples = dataclasses.replace(made, target=made.target.astype(target))
    at = batch_of(samples, cursor, rows)
    wanted_codes = samples.categorical[at] + samples.first_code
    embedded = samples.weight[wanted_codes].reshape(rows, len(vocabularies) * embedding)
    joined, codes, batch_target = kernels.in_any_order(
        lambda: on.gather_embed(kernels, samples, cursor, rows, kind, offsets)
    )
    wanted = np.concatenate([samples.numeric[at], embedded], 1)
    np.testing.assert_array_equal(joined, kind.encode(wanted))
    np.testing.assert_array_equal(codes, wanted_codes)
    np.testing.assert_array_equal(batch_target, samples.target[at])


@given(table=tables, rows=some_rows, kind=kinds, seed=seeds)
@few
def test_each_embedding_gets_the_sum_of_its_gradients(
    kernels: Kernels, table: tuple[int, list[int], int], rows: int, kind: Type, seed: int
) -> None:
    numbers, vocabularies, embedding = table
    samples = on.some_samples(seed, max(1, rows), numbers, vocabularies, embedding)
    codes = (samples.categorical + samples.first_code)[:rows]
    grad = whole_numbers(seed, rows, numbers + len(vocabularies) * embedding)
    shape = (len(samples.weight), embedding)
    wanted = np.zeros(shape)
    np.add.at(wanted, codes, grad[:, numbers:].reshape(*codes.shape, embedding))
    [grad_weight] = kernels.in_any_order(
        lambda: [on.gather_embed_backward(kernels, grad, codes, numbers, shape, kind)]
    )
    np.testing.assert_array_equal(grad_weight, wanted)


@pytest.mark.parametrize("kind", Type)
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("size", [1e-7, 1.0, 1e4, 1e30])  # the last two need larger units
def test_gradients_of_any_size_add_up_as_in_float64(
    kernels: Kernels, kind: Type, size: float, skewed: bool
) -> None:
    rows, columns, shape = 3000, 3, (40, 34)  # of several blocks, in each way that they divide
    random = np.random.default_rng(1)
    codes = random.integers(0, 40, (rows, columns)).astype(np.int32)
    if skewed:
        codes[random.random(codes.shape) < 0.9] = 7  # columns may share a row of weight
    size = min(size, 1e4) if kind == Type.FLOAT16 else size
    grad = rounded(random.normal(size=(rows, 2 + columns * 34)) * size, kind)
    wanted, sizes = np.zeros(shape), np.zeros(shape)
    for total, values in ((wanted, grad), (sizes, np.abs(grad))):
        np.add.at(total, codes, values[:, 2:].reshape(rows, columns, 34))
    [found] = kernels.in_any_order(
        lambda: [on.gather_embed_backward(kernels, grad, codes, 2, shape, kind)]
    )
    assert np.all(np.abs(found - wanted) <= 2e-7 * sizes + 2.0**-40 * rows)


def test_a_gradient_that_is_not_finite_makes_nan_of_its_row(kernels: Kernels) -> None:
    codes = np.array([[0], [1], [1], [2]], np.int32)
    for wrong in (np.nan, np.inf, -np.inf):
        grad = np.ones((4, 3))
        grad[1, 1] = wrong
        found = on.gather_embed_backward(kernels, grad, codes, 0, (3, 3), Type.FLOAT32)
        assert np.isnan(found[1, 1])


def test_a_code_that_does_not_exist_is_nan_and_has_no_gradient(kernels: Kernels) -> None:
    samples = on.some_samples(0, 6, 1, [3, 2], 4)
    samples.categorical[2, 1], samples.categorical[4, 1] = 2, -(2**31)
    joined, codes, _ = on.gather_embed(kernels, samples, 0, 6, Type.FLOAT32)
    wrong = np.isin(batch_of(samples, 0, 6), [2, 4])
    np.testing.assert_array_equal(np.isnan(joined[:, 5:]).all(1), wrong)
    assert not np.isnan(joined[:, :5]).any()
    grad_weight = on.gather_embed_backward(kernels, np.ones((6, 9)), codes, 1, (5, 4), Type.FLOAT32)
    assert grad_weight[3:].sum() == 4 * 4  # of 6 samples, two have no such category


# Optimiser


def rates_of(learning_rates: Sequence[float], betas: tuple[float, float]) -> Array:
    """Return the schedule of one step after the other."""
    rows = [[lr, *(1 / (1 - b**t) for b in betas)] for t, lr in enumerate(learning_rates, 1)]
    return np.array(rows, np.float32)


def fresh_parameters(
    kernels: Kernels, seed: int, offsets: Offsets, gradient_kind: Type, shadow_kind: Type | None
) -> list[on.Moved]:
    """Return more parameters than a launch takes, of all sizes, before their first step."""
    lengths = itertools.chain([0, 1, 3, 4, 5, 2047, 2048, 2049, 7000, 0], range(20, 140))
    made = [
        on.some_parameter(
            kernels,
            size,
            seed=seed + i,
            offsets=offsets if i % 2 else on.ALIGNED,
            gradient_kind=gradient_kind if i % 3 else Type.FLOAT32,
            shadow_kind=shadow_kind if i % 5 else None,
            decay=0.1 * (i % 2),
        )
        for i, size in enumerate(lengths)
    ]
    for each in made:
        each.m[:], each.v[:] = 0, 0
    return made


def descend(optimizer: str, parameters: Sequence[on.Moved], learning_rates: Sequence[float]) -> Any:
    """Return weights and state of nodes/tabular/optimizers.py in float64, after steps."""

    def shaped(each: on.Moved, values: Floats) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64).reshape(-1, *[1] * bool(each.decay))

    weights = [nn.Parameter(shaped(each, each.weight)) for each in parameters]
    descent = Optimizer(
        nn.ParameterList(weights), Settings(optimizer=optimizer, weight_decay=0.1, momentum=0.8)
    )
    for weight, each in zip(weights, parameters, strict=True):
        weight.grad = shaped(each, each.gradient_kind.decode(each.gradient))
    for rate in learning_rates:
        descent.step(rate)
    return [
        [w.detach().numpy().ravel() for w in group] for group in (weights, descent.m, descent.v)
    ]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@given(
    kind=kinds,
    shadow_kind=st.sampled_from([None, Type.BFLOAT16, Type.FLOAT16]),
    offsets=offsets,
    seed=seeds,
)
@hypothesis_settings(max_examples=10)
def test_the_optimizers_steps_are_descents(
    kernels: Kernels,
    optimizer: str,
    kind: Type,
    shadow_kind: Type | None,
    offsets: Offsets,
    seed: int,
) -> None:
    learning_rates = [0.1, 0.05, 0.2]
    parameters = fresh_parameters(kernels, seed, offsets, kind, shadow_kind)
    weights, ms, vs = descend(optimizer, parameters, learning_rates)
    schedule = rates_of(learning_rates, (0.9, 0.999))
    for step in range(len(learning_rates)):
        if optimizer == "adamw":
            on.adamw_step(kernels, parameters, schedule, step)
        else:
            on.sgd_step(kernels, parameters, schedule, step, 0.8)
    for each, weight, m, v in zip(parameters, weights, ms, vs, strict=True):
        np.testing.assert_allclose(each.weight, weight, rtol=1e-5, atol=3e-6)
        np.testing.assert_allclose(each.m, m, rtol=1e-5, atol=1e-6)
        if optimizer == "adamw":
            np.testing.assert_allclose(each.v, v, rtol=1e-5, atol=1e-9)
        if each.shadow is not None:
            np.testing.assert_array_equal(each.shadow, each.shadow_kind.encode(each.weight))


def test_adamw_is_torchs(kernels: Kernels) -> None:
    moved = on.some_parameter(kernels, 5000, decay=0.3)
    moved.m[:], moved.v[:] = 0, 0
    weight = nn.Parameter(torch.tensor(moved.weight).double())
    theirs = torch.optim.AdamW([weight], lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3)
    for step in range(5):
        weight.grad = torch.tensor(moved.gradient).double()
        theirs.step()
        on.adamw_step(kernels, [moved], rates_of([0.01] * 5, (0.8, 0.95)), step, (0.8, 0.95), 1e-6)
    np.testing.assert_allclose(moved.weight, weight.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("step", "row"), [(-5, 0), (0, 0), (1, 1), (2, 2), (3, 2), (10**12, 2)])
def test_the_step_picks_the_schedules_row(kernels: Kernels, step: int, row: int) -> None:
    schedule = np.array([[1, 1, 1], [2, 1, 1], [3, 1, 1]], np.float32)
    moved = on.some_parameter(kernels, 4)
    moved.m[:], before = 0, moved.weight.copy()
    on.sgd_step(kernels, [moved], schedule, step, 0.0)
    np.testing.assert_array_equal(moved.weight, before - schedule[row, 0] * moved.gradient)


def test_the_steps_hang_on_no_order(kernels: Kernels) -> None:
    def run() -> list[Array]:
        parameters = fresh_parameters(kernels, 1, (1,) * 5, Type.BFLOAT16, Type.FLOAT16)
        on.adamw_step(kernels, parameters, rates_of([0.1], (0.9, 0.999)), 0)
        on.sgd_step(kernels, parameters, rates_of([0.1], (0.9, 0.999)), 0, 0.9)
        return [array for each in parameters for array in (each.weight, each.m, each.v)]

    kernels.in_any_order(run)


def test_a_launch_takes_64_parameters(kernels: Kernels) -> None:
    schedule = rates_of([0.1], (0.9, 0.999))
    for count, launches in [(0, 0), (1, 1), (64, 1), (65, 2), (129, 3)]:
        parameters = [on.some_parameter(kernels, 1 + i) for i in range(count)]
        parameters.insert(count // 2, on.some_parameter(kernels, 0))
        before = kernels.grids
        on.adamw_step(kernels, parameters, schedule, 0)
        assert kernels.grids - before == launches


def test_a_tick_moves_the_clock(kernels: Kernels) -> None:
    clock = kernels.array(np.array([10, 20, 30, 40]))
    loss, loss_sum = kernels.array(np.array([0.1], np.float32)), kernels.array(np.array([0.5]))
    kernels.launch("tick", clock, loss, loss_sum, 256)
    assert clock.tolist() == [266, 21, 30, 41]
    assert loss_sum[0] == 0.5 + float(np.float32(0.1))


# What holds for all


def test_nothing_is_launched_for_an_empty_input(kernels: Kernels) -> None:
    before, kind, none = kernels.grids, Type.FLOAT32, np.zeros(0)
    for shape in ((0, 3), (3, 0)):
        x = np.zeros(shape)
        on.bias_relu_dropout(kernels, x, np.zeros(shape[1]), Dropout(), (kind, kind))
        _, grad_bias = on.bias_relu_dropout_backward(kernels, x, x, 0.0, kind)
        np.testing.assert_array_equal(grad_bias, np.zeros(shape[1]))
    untouched = [
        on.softmax_cross_entropy(kernels, np.zeros((0, 3)), none, kind)[0],
        *(on.pointwise_loss(kernels, name, none, none, kind)[0] for name in POINTWISE),
    ]
    assert all(loss.tobytes() == b"\x5a" * 4 for loss in untouched)  # as it was allocated
    samples = on.some_samples(0, 3, 2, [5], 4)
    _, codes, _ = on.gather_embed(kernels, samples, 0, 0, kind)
    grad_weight = on.gather_embed_backward(kernels, np.zeros((0, 6)), codes, 2, (5, 4), kind)
    np.testing.assert_array_equal(grad_weight, np.zeros((5, 4)))
    assert kernels.grids == before


@pytest.mark.parametrize("p", [1.0, -0.1, np.nan, np.inf])
def test_a_probability_outside_0_to_1_is_refused(kernels: Kernels, p: float) -> None:
    x, both = np.zeros((2, 3)), (Type.FLOAT32, Type.FLOAT32)
    with pytest.raises(LaunchError):
        on.bias_relu_dropout(kernels, x, x[0], Dropout(p=p), both)
    with pytest.raises(LaunchError):
        on.bias_relu_dropout_backward(kernels, x, x, p, Type.FLOAT32)


def test_what_makes_no_sense_is_refused(kernels: Kernels) -> None:
    x, schedule = np.zeros((2, 3)), rates_of([0.1], (0.9, 0.999))
    with pytest.raises(LaunchError):
        kernels.launch("mean_squared_error", *[None] * 5, -1, Type.FLOAT32)
    with pytest.raises(LaunchError):
        on.bias_relu_dropout(kernels, x, x[0], Dropout(), (Type.BFLOAT16, Type.FLOAT16))
    with pytest.raises(LaunchError):
        on.adamw_step(kernels, [on.some_parameter(kernels, 4)], schedule[:0], 0)
    shadowed = on.some_parameter(kernels, 4, shadow_kind=Type.FLOAT32)
    with pytest.raises(LaunchError):
        on.sgd_step(kernels, [shadowed], schedule, 0, 0.9)
    samples = on.some_samples(0, 3, 2, [5], 4)
    short_target = dataclasses.replace(samples, target=samples.target.astype(np.int16))
    no_order = dataclasses.replace(samples, order=samples.order[:0])
    for wrong in (short_target, no_order):
        with pytest.raises(LaunchError):
            on.gather_embed(kernels, wrong, 0, 3, Type.FLOAT32)


# The sanitizers, and whether they would see


def sanitized_environment() -> dict[str, str]:
    runtime = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    options = "detect_leaks=0"  # Python's own
    return {**os.environ, "LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": options}


@needs_compiler
@pytest.mark.thorough
def test_sanitizers_find_nothing(request: pytest.FixtureRequest) -> None:
    library = build(folder_for(request, "sanitized"), sanitized=True)
    swept = subprocess.run(
        [sys.executable, "-m", "tests.kernels.sweep", library],
        env={**sanitized_environment(), "OPENBLAS_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert swept.returncode == 0, swept.stderr
    assert "nothing found" in swept.stdout


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("faulty") / "faulty")


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("beyond", "heap-buffer-overflow"),
        ("beyond shared", "index 256 out of bounds"),
        ("misaligned", "misaligned address"),
        ("unsynchronised", "nan"),
        ("left", "255 threads wait in __syncthreads, 0 in a shuffle, 1 have returned"),
        ("divergent", "128 in a shuffle, 128 have returned"),
        ("no threads", "error 9"),
        ("too many blocks", "error 9"),
        ("sound", "error 0, sum 256"),
    ],
)
def test_the_stand_in_tells_a_faulty_kernel(faulty: Path, fault: str, expected: str) -> None:
    ran = subprocess.run([faulty, fault], capture_output=True, text=True)
    assert expected in ran.stdout + ran.stderr


# nvcc

MULC = ROOT / "tests" / "bench" / "kernels" / "mulc.cu"
SOURCES = [*sorted(CUDA.glob("*.cu")), MULC]
TAKE_PACKS = [path for path in SOURCES if "pack.cuh" in path.read_text()] + [MULC]


def nvcc(*words: str | Path) -> str:
    """Run nvcc as strictly as it can be run, and return what it said."""
    strict = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    ran = subprocess.run(
        ["nvcc", "-std=c++17", "-O3", f"-I{CUDA}", *strict, *words], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@needs_nvcc
@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_nvcc_keeps_every_kernel_in_registers(source: Path, tmp_path: Path) -> None:
    known = {int(found) for found in re.findall(r"compute_(\d+)", nvcc("--list-gpu-arch"))}
    wanted = {75, 80, 86, 89, 90, max(known)} & known
    assert {80, 86, 89, 90} <= wanted
    targets = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in sorted(wanted)]
    output = nvcc(*targets, "-fatbin", "-Xptxas", "-v", source, "-o", tmp_path / "fatbin")
    used = re.findall(r"(\d+) bytes (stack frame|spill stores|spill loads)", output)
    assert len(used) >= 3 * len(wanted)
    assert {count for count, _ in used} == {"0"}


@needs_nvcc
@pytest.mark.parametrize("source", TAKE_PACKS, ids=lambda path: path.name)
def test_kernels_that_take_packs_have_wide_loads_and_stores(source: Path, tmp_path: Path) -> None:
    ptx = tmp_path / "kernels.ptx"
    nvcc("-arch=sm_90", "-ptx", source, "-o", ptx)
    packed = r"ILb1E|LayoutE[12]E|mulc_kernel|gather_kernelILi4E|step_kernel"
    entries = re.findall(r"\.entry (\w+)(.*?)\n}", ptx.read_text(), re.DOTALL)
    wide = [(name, body) for name, body in entries if re.search(packed, name)]
    assert wide
    for name, body in wide:
        assert re.search(r"ld\.global\S*\.v4", body), name
        assert re.search(r"st\.global\S*\.v4", body), name
