"""Training data: generated tables with the shape of known ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trialfleet.nodes.tabular import dataset, settings, table

SEED = 1
VALIDATION = 8192  # rows


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A table with two classes and a network for it."""

    name: str
    rows: int
    numeric: int
    vocabularies: tuple[int, ...]
    hidden: int
    layers: int
    batch: int
    dropout: float = 0.0

    @property
    def settings(self) -> settings.Settings:
        """The trainer's settings; the learning rate hardly falls during the measurement."""
        return settings.Settings(
            hidden=self.hidden,
            layers=self.layers,
            batch_size=self.batch,
            dropout=self.dropout,
            weight_decay=0.01,
            epochs=1000,
        )

    @property
    def steps(self) -> int:
        """Steps of an epoch; the rows are a multiple of the batch."""
        return self.rows // self.batch

    @property
    def widths(self) -> list[int]:
        """Number of inputs of the first layer, then that of the outputs of each layer."""
        inputs = self.numeric + len(self.vocabularies) * self.settings.embedding
        return [inputs, *[self.hidden] * self.layers, 1]

    @property
    def parameters(self) -> int:
        """Number of weights, biases and embedding numbers of the network."""
        widths = self.widths
        linear = sum((a + 1) * b for a, b in pairwise(widths))
        return linear + sum(size + 1 for size in self.vocabularies) * self.settings.embedding

    def small(self) -> Workload:
        """Return a smaller workload for a CPU: a 64th of the rows, a quarter of the width."""
        return replace(
            self,
            name=f"{self.name}, scaled down for a CPU",
            rows=self.rows // 64,
            hidden=self.hidden // 4,
            batch=self.batch // 4,
        )


FLIGHTS = Workload(
    name="flights-like",
    rows=98_304,
    numeric=10,
    vocabularies=(16, 105, 12),
    hidden=128,
    layers=2,
    batch=512,
)
# "Millions of parameters", one and four million samples; such networks used dropout.
IN_2014 = Workload(
    name="2014, 1 million samples",
    rows=1 << 20,
    numeric=256,
    vocabularies=(),
    hidden=1024,
    layers=4,
    batch=4096,
    dropout=0.2,
)
IN_2014_LARGE = replace(IN_2014, name="2014, 4 million samples", rows=1 << 22)


def workloads(device: torch.device) -> list[Workload]:
    """Return the workloads that the device can train within minutes."""
    if device.type == "cpu":
        return [FLIGHTS, IN_2014.small(), IN_2014_LARGE.small()]
    return [FLIGHTS, IN_2014, IN_2014_LARGE]


def make_data(workload: Workload) -> dataset.Dataset:
    """Return rows in main memory; another random network gives the class, with noise."""
    generator = torch.Generator().manual_seed(SEED)

    def rows(count: int) -> dataset.Rows:
        numeric = torch.randn(count, workload.numeric, generator=generator)
        codes = [
            torch.randint(1, size + 1, (count,), generator=generator, dtype=torch.int32)
            for size in workload.vocabularies
        ]
        categorical = torch.stack(codes, 1) if codes else torch.zeros(count, 0, dtype=torch.int32)
        return dataset.Rows(
            numeric=numeric, categorical=categorical, target=_classes(numeric, codes, generator)
        )

    one = torch.ones(1, dtype=torch.float64)
    return dataset.Dataset(
        columns=_columns(workload),
        numeric_scale=dataset.Scale(mean=0 * one, deviation=one),
        target_scale=dataset.Scale(mean=0 * one, deviation=one),
        train=rows(workload.rows),
        validation=rows(VALIDATION),
        test=rows(1),
    )


def _classes(numeric: Tensor, codes: list[Tensor], generator: torch.Generator) -> Tensor:
    """Return 0 or 1 by a curved function of the columns."""
    weights = torch.linspace(-1, 1, numeric.shape[1])
    score = numeric @ weights + (numeric[:, 0] * numeric[:, 1]) + numeric[:, 2].abs()
    for code in codes:
        score += (code % 3 - 1).float()
    noise = torch.randn(len(score), generator=generator)
    scale = weights.square().sum().sqrt()
    return (score / scale + 0.5 * noise > 0.3).float()


def _columns(workload: Workload) -> table.Columns:
    categorical: dict[str, Any] = {
        f"c{j}": [str(value) for value in range(size)]
        for j, size in enumerate(workload.vocabularies)
    }
    return table.Columns(
        numeric=[f"n{j}" for j in range(workload.numeric)],
        categorical=categorical,
        target="y",
        task="classification",
        classes=["no", "yes"],
    )
