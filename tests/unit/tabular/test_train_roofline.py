"""The benchmark's formulas, against what torch counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.bench.train import roofline, workloads
from trialfleet.nodes.tabular import loader
from trialfleet.nodes.tabular.graph_steps import GraphSteps
from trialfleet.nodes.tabular.network import Network
from trialfleet.nodes.tabular.ranks import Ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("vocabularies", [(), (3, 5)])
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_flops_and_parameters_are_those_of_a_step(
    vocabularies: tuple[int, ...], layers: int
) -> None:
    small = replace(
        workloads.FLIGHTS, rows=64, batch=32, hidden=8, layers=layers, vocabularies=vocabularies
    )
    data = workloads.make_data(small)
    network = Network(data.columns, small.settings)
    used = [w for w in network.parameters() if vocabularies or w is not network.embedding.weight]
    assert sum(w.numel() for w in used) == small.parameters
    source = loader.ResidentLoader(
        data.train, loader.RowOrders(1, small.rows, small.batch, Ranks())
    )
    steps = GraphSteps(network, small.settings, data.kind, source, seed=1)
    with FlopCounterMode(display=False) as counter:
        steps._step(small.batch)
    assert counter.get_total_flops() == roofline.flops_of(small)


@pytest.mark.parametrize(
    ("step", "least", "bound"),
    [
        (roofline.Step(flops=100.0, bytes=1.0, launches=1), 1.0, "flops"),
        (roofline.Step(flops=1.0, bytes=20.0, launches=1), 2.0, "bytes"),
        (roofline.Step(flops=1.0, bytes=20.0, launches=5), 2.0, "launches"),
    ],
)
def test_the_roofline_is_of_flops_and_bytes_and_launches_may_bound_a_step(
    step: roofline.Step, least: float, bound: str
) -> None:
    ceilings = roofline.Ceilings(bandwidth=10.0, flops=100.0, launch=0.5)
    assert ceilings.roofline(step) == least
    assert ceilings.bound(step) == bound


def test_a_linear_models_bytes_add_up() -> None:
    """4 rows, 2 columns, 1 output: by hand, in numbers of 4 bytes."""
    linear = replace(
        workloads.FLIGHTS, rows=4, batch=4, numeric=2, layers=0, vocabularies=(), hidden=1
    )
    batch = 4 * (2 + 1 + 2) + 4 * 2  # columns, target and a row's number (8 bytes); written
    layer = (8 + 2 + 4) + (4 + 8 + 2)
    loss, optimiser = 2 * 4, 2 + 6 * 2
    assert roofline.bytes_of(linear, torch.float32.itemsize) == 4 * (
        batch + layer + loss + optimiser
    )


def test_the_ceilings_are_measured_with_numbers_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of equal ones a GPU multiplies more in a second: fewer bits change, so its clocks rise."""
    cpu, seen = torch.device("cpu"), []
    monkeypatch.setattr(roofline, "COPIED", {"cpu": 1 << 12})
    monkeypatch.setattr(roofline, "SIDE", {"cpu": 32})

    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.mm):
                seen.append((str(func), [int(each.unique().numel()) for each in args]))
            return func(*args, **(kwargs or {}))

    with Seen():  # type: ignore[no-untyped-call]
        roofline.measure_ceilings(cpu, torch.float32, 2)
    assert {name for name, _ in seen} == {"aten.copy_.default", "aten.mm.default"}
    assert min(count for _, counts in seen for count in counts) > 900
