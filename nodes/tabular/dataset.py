"""A region's rows, prepared for training: sampled, clipped and standardised.

Shapes: n rows, b rows of a batch, d numeric columns, k categorical columns.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from trialfleet.nodes import trial
from trialfleet.nodes.tabular import settings, table

FAR = 6.0  # deviations from the mean


@dataclass(frozen=True)
class Rows:
    """Some rows of a region's table, such as its training rows."""

    numeric: Tensor  # [n, d] float32, standardised, missing values 0
    categorical: Tensor  # [n, k] int32, 0 = unknown
    # [n]; float32: standardised value, or 0 / 1; int64: the class's number
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three tensors: numeric, categorical, target."""
        return self.numeric, self.categorical, self.target

    @property
    def bytes(self) -> int:
        """The memory of the rows in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def to(self, device: torch.device) -> Rows:
        """Return the rows on `device`."""
        return Rows(*(tensor.to(device) for tensor in self.tensors))

    def empty(self, count: int, device: torch.device, *, pinned: bool = False) -> Rows:
        """Return `count` rows of zeros on `device`, with the same columns and types.

        `pinned` puts them in page-locked memory, from which copies to a GPU are faster.
        """
        room = (
            torch.zeros(
                (count, *tensor.shape[1:]), dtype=tensor.dtype, device=device, pin_memory=pinned
            )
            for tensor in self.tensors
        )
        return Rows(*room)

    def select(self, index: Tensor) -> Rows:
        """Return the rows with the numbers `index` [b]."""
        return Rows(*(tensor.index_select(0, index) for tensor in self.tensors))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers with which columns are clipped and standardised, from the training rows."""

    mean: Tensor  # [d]
    deviation: Tensor  # [d], 0 for a column with one value, which becomes 0 in all rows
    low: Tensor | None = None  # [d], smaller values are replaced by it; None: no clipping
    high: Tensor | None = None  # [d], larger values are replaced by it

    @staticmethod
    def measure(values: Tensor) -> Scale:
        """Return the scale of the columns of `values` [n, d]. Missing values (NaN) are left out."""
        exact = values.double()
        mean = exact.nanmean(0).nan_to_num(0.0)  # a column without any value
        low, high = exact.nan_to_num(math.inf).amin(0), exact.nan_to_num(-math.inf).amax(0)
        varies = high - low > table.SAME * torch.maximum(low.abs(), high.abs())
        deviation = torch.where(varies, (exact - mean).square().nanmean(0).sqrt(), 0.0)
        return Scale(
            mean=mean,
            deviation=deviation,
            # Clip values outside of these ranges, because a network can't extrapolate that far.
            low=torch.minimum(low, mean - FAR * deviation).nan_to_num(),
            high=torch.maximum(high, mean + FAR * deviation).nan_to_num(),
        )

    @staticmethod
    def measure_target(values: Tensor) -> Scale:
        """Return the scale of a target [n], which clips no values."""
        found = Scale.measure(values.unsqueeze(1))
        return Scale(
            mean=found.mean, deviation=torch.where(found.deviation > 0, found.deviation, 1.0)
        )

    @staticmethod
    def read(description: dict[str, list[float]]) -> Scale:
        """Return the scale from `description`, which `describe` has returned."""
        return Scale(
            **{
                name: torch.tensor(values, dtype=torch.float64)
                for name, values in description.items()
            }
        )

    def describe(self) -> dict[str, list[float]]:
        """Return the scale as data for JSON, from which `read` makes an equal scale."""
        return {name: values.tolist() for name, values in vars(self).items() if values is not None}

    def restore(self, values: Tensor) -> Tensor:
        """Return standardised values in their original unit, as float64."""
        return values.double() * self.deviation + self.mean

    def standardise(self, values: Tensor) -> Tensor:
        """Clip the values, and return (values - mean) / deviation, float32 [n, d].

        A missing value becomes 0, as if it were the mean.
        """
        exact = values.double()
        if self.low is not None or self.high is not None:
            exact = exact.clamp(self.low, self.high)
        scaled = (exact - self.mean) / torch.where(self.deviation > 0, self.deviation, math.inf)
        return scaled.nan_to_num(0.0).float()


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A region's data, prepared for training."""

    columns: table.Columns
    numeric_scale: Scale  # [d]
    target_scale: Scale  # [1], 0 and 1 for classification
    train: Rows
    validation: Rows
    test: Rows

    @property
    def kind(self) -> str:
        """The kind of task: "binary", "multiclass" or "regression"."""
        return self.columns.kind

    @property
    def bytes(self) -> int:
        """The memory of all rows in bytes."""
        return self.train.bytes + self.validation.bytes + self.test.bytes

    def to(self, device: torch.device) -> Dataset:
        """Return the same data with its rows on `device`."""
        parts = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return dataclasses.replace(self, **parts)


def load(t: trial.Trial, chosen: settings.Settings) -> Dataset:
    """Return the rows of the region's table, standardised, in main memory.

    Exit unless the region has exactly one table. Raise ValueError or OSError if the table can't be
    read.
    """
    if len(t.data) != 1:
        sys.exit(
            "The tabular trainer needs exactly one table per region, but this region's data files "
            f"are: {', '.join(map(str, t.data)) or 'none'}"
        )
    source = table.read_table(t.data[0]).used()
    numeric = torch.from_numpy(source.numeric)
    categorical = torch.from_numpy(source.categorical)
    target = torch.from_numpy(source.target)
    split = torch.from_numpy(source.split)
    trained = (split == table.TRAIN).nonzero().flatten()
    trained = sample(trained, training_share(t, chosen))
    kind = source.columns.kind
    numeric_scale = Scale.measure(numeric[trained])
    target_scale = Scale(mean=torch.zeros(1).double(), deviation=torch.ones(1).double())
    if kind == "regression":
        target_scale = Scale.measure_target(target[trained])
    target = target_scale.standardise(target.unsqueeze(1)).squeeze(1)  # [n, 1] -> [n]

    def rows(index: Tensor) -> Rows:
        wanted = target[index]
        return Rows(
            numeric=numeric_scale.standardise(numeric[index]),
            categorical=categorical[index],
            target=wanted.long() if kind == "multiclass" else wanted,
        )

    return Dataset(
        columns=source.columns,
        numeric_scale=numeric_scale,
        target_scale=target_scale,
        train=rows(trained),
        validation=rows((split == table.VALIDATION).nonzero().flatten()),
        test=rows((split == table.TEST).nonzero().flatten()),
    )


def training_share(t: trial.Trial, chosen: settings.Settings) -> float:
    """Return the share of the training rows that the trial uses.

    It is the setting `tune_fraction` in mode "tune", and 1 in the other modes.
    """
    return chosen.tune_fraction if t.mode == "tune" else 1.0


def sample(index: Tensor, fraction: float) -> Tensor:
    """Return a random `fraction` of the numbers in `index`, in the same order.

    Every trial gets the same numbers, so that the trials' results can be compared.
    """
    count = max(1, round(fraction * len(index)))
    chosen = torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:count]
    return index[chosen.sort().values]
