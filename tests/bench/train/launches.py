"""Counts the launches of a step: `python -m tests.bench.train.launches [--json]`.

No GPU is needed, and the figures are the same on every machine. Each operation that is no view is
at least one launch on a GPU, which reads inputs from memory and writes outputs there. So the counts
show what fusing saves, before anything is timed. Dropout is counted as on a CPU, with three
operations; on a GPU eager torch uses one. "Of two" is a rank's step if two GPUs share a batch.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.bench.train import rivals, workloads
from tests.bench.train.workloads import SEED, Workload
from tests.one_process import world_of_one
from trialfleet.nodes.tabular import dataset, loader
from trialfleet.nodes.tabular.graph_steps import GraphSteps
from trialfleet.nodes.tabular.network import compute_loss
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.steps import PlainSteps, Steps

CPU = torch.device("cpu")
# Operations that only allocate, alias or annotate.
NO_LAUNCH = (
    "aten.empty",
    "aten.new_empty",
    "aten.detach",
    "aten._unsafe_view",
    "aten.lift_fresh",
    "profiler.",
)
# Operations that read only those rows of a table that they return.
GATHERS = ("aten.index_select", "aten.embedding", "trialfleet.gather_embed")


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations and the bytes of their arguments and results while it is active.

    Attributes:
        operations: number of each, by name.
        bytes: total of each, by name.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket)
        if not func.is_view and not name.startswith(NO_LAUNCH):
            self.operations[name] += 1
            written = args[:1] if result is None else result  # None: in place
            read = written if name in GATHERS else args
            self.bytes[name] += sum(tensor.nbytes for tensor in tensors((read, written)))
        return result

    def described(self) -> dict[str, Any]:
        """Return the counts as plain data, the most bytes first."""
        names = sorted(self.operations, key=lambda name: -self.bytes[name])
        return {
            "launches": self.operations.total(),
            "bytes": self.bytes.total(),
            "operations": {
                name: {"launches": self.operations[name], "bytes": self.bytes[name]}
                for name in names
            },
        }


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def counted(workload: Workload) -> dict[str, Any]:
    """Return the counts of one step of each way, in float32."""
    data = workloads.make_data(workload)
    return {
        "workload": workload.name,
        "eager": eager_step(data, workload).described(),
        "ours": fused_step(data, workload).described(),
        "of two": step_of_two(data, workload).described(),
    }


def eager_step(data: dataset.Dataset, workload: Workload) -> Count:
    """Count a usual step in torch: rows by index, autograd, torch's fused AdamW."""
    network = rivals.network_of(data, workload, CPU)
    optimizer = rivals.adamw_of(network, workload)
    index = torch.arange(workload.batch)

    def step() -> None:
        batch = data.train.select(index)
        optimizer.zero_grad()
        outputs = network(batch.numeric, batch.categorical)
        compute_loss(outputs, batch.target, data.kind).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()  # the optimiser makes its state
    count = Count()
    with count:
        step()
    return count


def fused_step(
    data: dataset.Dataset,
    workload: Workload,
    dtype: torch.dtype = torch.float32,
    team: Ranks | None = None,
) -> Count:
    """Count the trainer's step as on a GPU, where all of it is one CUDA graph."""
    network, team = rivals.network_of(data, workload, CPU), team or Ranks()
    orders = loader.RowOrders(SEED, len(data.train), workload.batch, team)
    rows = loader.ResidentLoader(data.train, orders)
    return count_step(
        GraphSteps(
            *(network, workload.settings, data.kind, rows),
            seed=SEED,
            dtype=dtype,
            team=team,
            capture=False,
        )
    )


def step_of_two(
    data: dataset.Dataset, workload: Workload, dtype: torch.dtype = torch.float32
) -> Count:
    """Count a step of the first of two ranks; the second need not exist."""
    with world_of_one():
        return fused_step(data, workload, dtype, Ranks(0, 2))


def plain_step(data: dataset.Dataset, workload: Workload) -> Count:
    """Count the trainer's step as on a CPU."""
    network = rivals.network_of(data, workload, CPU)
    return count_step(PlainSteps(network, data, workload.settings, SEED))


def count_step(steps: Steps) -> Count:
    """Count the first step of an epoch."""
    steps.begin(0, 0, 0.0)
    count = Count()
    with count:
        steps.take()
    return count


def launches_of(workload: Workload, device: torch.device, dtype: torch.dtype) -> int:
    """Return the least number of launches of our step on the device."""
    few = replace(workload, rows=2, batch=2)  # their number is the same for any batch
    data = workloads.make_data(few)
    count = fused_step(data, few, dtype) if device.type == "cuda" else plain_step(data, few)
    return count.operations.total()


def main() -> None:
    """Count and print."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--json", action="store_true", help="every operation, as one object")
    chosen = reader.parse_args()
    results = [counted(workload) for workload in workloads.workloads(CPU)]
    if chosen.json:
        print(json.dumps(results, indent=1))
        return
    for result in results:
        print(f"\n{result['workload']}")
        for way in ("eager", "ours", "of two"):
            found = result[way]
            print(f"  {way:6} {found['launches']:4} launches, {found['bytes'] / 1e6:8.1f} MB")
            for name, part in [*found["operations"].items()][:8]:
                print(f"    {name:44} {part['launches']:4} {part['bytes'] / 1e6:10.2f} MB")


if __name__ == "__main__":
    main()
