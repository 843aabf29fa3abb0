"""The CUDA kernels of the optimiser's steps and of the clock."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from tests.kernels import operations as on
from tests.kernels.operations import Floats, Offsets
from tests.kernels.stand_in import Array, Kernels, Type
from tests.unit.kernels.conftest import kinds, offsets, rates_of, seeds
from trialfleet.nodes.tabular.optimizers import Optimizer
from trialfleet.nodes.tabular.settings import Settings

pytestmark = pytest.mark.slow


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
def test_the_kernels_steps_equal_those_of_the_tabular_optimizer(
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


def test_adamw_equals_torchs(kernels: Kernels) -> None:
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
def test_the_step_selects_the_row_of_the_schedule(kernels: Kernels, step: int, row: int) -> None:
    schedule = np.array([[1, 1, 1], [2, 1, 1], [3, 1, 1]], np.float32)
    moved = on.some_parameter(kernels, 4)
    moved.m[:], before = 0, moved.weight.copy()
    on.sgd_step(kernels, [moved], schedule, step, 0.0)
    np.testing.assert_array_equal(moved.weight, before - schedule[row, 0] * moved.gradient)


def test_the_steps_do_not_depend_on_the_order_of_execution(kernels: Kernels) -> None:
    def run() -> list[Array]:
        parameters = fresh_parameters(kernels, 1, (1,) * 5, Type.BFLOAT16, Type.FLOAT16)
        on.adamw_step(kernels, parameters, rates_of([0.1], (0.9, 0.999)), 0)
        on.sgd_step(kernels, parameters, rates_of([0.1], (0.9, 0.999)), 0, 0.9)
        return [array for each in parameters for array in (each.weight, each.m, each.v)]

    kernels.in_any_order(run)


def test_a_launch_takes_up_to_64_parameters(kernels: Kernels) -> None:
    schedule = rates_of([0.1], (0.9, 0.999))
    for count, launches in [(0, 0), (1, 1), (64, 1), (65, 2), (129, 3)]:
        parameters = [on.some_parameter(kernels, 1 + i) for i in range(count)]
        parameters.insert(count // 2, on.some_parameter(kernels, 0))
        before = kernels.grids
        on.adamw_step(kernels, parameters, schedule, 0)
        assert kernels.grids - before == launches


def test_a_tick_moves_the_clock_and_adds_the_loss(kernels: Kernels) -> None:
    clock = kernels.array(np.array([10, 20, 30, 40]))
    loss, loss_sum = kernels.array(np.array([0.1], np.float32)), kernels.array(np.array([0.5]))
    kernels.launch("tick", clock, loss, loss_sum, 256)
    assert clock.tolist() == [266, 21, 30, 41]
    assert loss_sum[0] == 0.5 + float(np.float32(0.1))
