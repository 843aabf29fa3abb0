"""The CUDA kernels of losses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional

from tests.kernels import operations as on
from tests.kernels.operations import Floats, Offsets
from tests.kernels.stand_in import Array, Kernels, Type
from tests.unit.kernels.conftest import (
    POINTWISE,
    assert_close,
    few,
    kinds,
    normal,
    offsets,
    rounded,
    seeds,
    sizes,
    some_columns,
    some_rows,
)

pytestmark = pytest.mark.slow


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
def test_softmax_cross_entropy_equals_torchs(
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
def test_softmax_gives_the_same_bits_for_every_alignment(
    kernels: Kernels, rows: int, classes: int, kind: Type, seed: int
) -> None:
    logits = normal(seed, rows, classes)
    target = np.random.default_rng(seed).integers(0, classes, rows)
    results = [
        on.softmax_cross_entropy(kernels, logits, target, kind, offsets)
        for offsets in (on.ALIGNED, (1,) * 5, (0, 1, 0, 0, 0))
    ]
    assert len({(loss.tobytes(), grad.tobytes()) for loss, grad in results}) == 1


def test_the_loss_without_classes_is_nan(kernels: Kernels) -> None:
    loss, _ = on.softmax_cross_entropy(kernels, np.zeros((3, 0)), np.zeros(3), Type.FLOAT32)
    assert np.isnan(loss).all()


def test_logits_may_exceed_the_range_of_exp(kernels: Kernels) -> None:
    logits = np.array([[1e30, 0.0], [-1e30, 0.0], [1e4, 1e4]])
    loss, grad = on.softmax_cross_entropy(kernels, logits, np.array([0, 1, 1]), Type.FLOAT32)
    np.testing.assert_allclose(loss, np.log(2) / 3, rtol=1e-6)
    np.testing.assert_allclose(grad, np.array([[0, 0], [0, 0], [0.5, -0.5]]) / 3, rtol=1e-6)
    logits, target = np.array([1e30, -1e30, 1e4, 0.0]), np.array([1.0, 0.0, 1.0, 0.5])
    loss, grad = on.pointwise_loss(kernels, "sigmoid_bce", logits, target, Type.FLOAT32)
    np.testing.assert_allclose(loss, np.log(2) / 4, rtol=1e-6)
    np.testing.assert_array_equal(grad, 0)


@given(
    name=st.sampled_from([*POINTWISE]),
    rows=sizes.filter(bool),
    kind=kinds,
    offsets=offsets,
    seed=seeds,
)
@few
def test_losses_of_one_output_equal_torchs(
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
