"""The CUDA kernels that gather a batch and embed its codes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kernels import operations as on
from tests.kernels.operations import Offsets
from tests.kernels.stand_in import Array, Kernels, Type
from tests.unit.kernels.conftest import (
    few,
    kinds,
    offsets,
    rounded,
    seeds,
    some_rows,
    whole_numbers,
)

pytestmark = pytest.mark.slow
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


def test_a_gradient_that_is_not_finite_gives_nan_in_its_embedding(kernels: Kernels) -> None:
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
