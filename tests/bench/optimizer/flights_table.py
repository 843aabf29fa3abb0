"""The replay table of flights: results of the same settings in 36 related regions.

A region is a departure airport in a month; its yesterday is the month before. Every cell is one
training by the reference trainer: its results after every epoch, and the result of the best epoch
on the test days. `flights_trainings.py` makes the table; reading it does not need torch.

    table = read()
    table.regions            ["EWR-01", …, "LGA-12"]
    table.settings           the points of the search space, the defaults first
    table.curves("EWR-03")         [settings, epochs] val_loss; NaN from where a training failed
    table.losses("EWR-03")         [settings] the best epoch's val_loss: the result for a sampler
    table.test("EWR-03")           [settings] test_loss of the epoch with the best val_auc
    table.seconds("EWR-03")        [settings] duration of each training
    table.yesterday("EWR-03")      "EWR-02"; None for January

The objective is val_loss, not the example's val_auc. A region has six validation days, so the
largest AUC of twelve epochs is partly luck: the ranks of the same settings in two regions have a
correlation of 0.8 by val_loss and of 0.7 by val_auc.

The file is xz-compressed text: a line of JSON about the table, one with the settings, then one for
each training. A second file has the checksum of the compressed file, for `sha256sum --check`.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trialfleet.errors import TrialfleetError
from trialfleet.files import write_atomic

Array = NDArray[np.float64]

FILE = Path(__file__).with_name("flights.jsonl.xz")
AIRPORTS = ("EWR", "JFK", "LGA")
REGIONS = [f"{airport}-{month:02}" for airport in AIRPORTS for month in range(1, 13)]
EPOCHS = 12
SPACE: dict[str, Any] = {
    "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True, "default": 1e-3},
    "optimizer": {"type": "categorical", "choices": ["adamw", "sgd"]},
    "momentum": {
        "type": "float",
        "low": 0.0,
        "high": 0.98,
        "default": 0.9,
        "when": {"optimizer": "sgd"},
    },
    "batch_size": {"type": "int", "low": 128, "high": 1024, "log": True, "default": 256},
    "layers": {"type": "int", "low": 0, "high": 3, "default": 2},
    "hidden": {"type": "int", "low": 16, "high": 256, "log": True, "default": 128},
    "dropout": {"type": "float", "low": 0.0, "high": 0.5, "default": 0.0},
    "weight_decay": {"type": "float", "low": 1e-3, "high": 10.0, "log": True, "default": 1e-2},
    "embedding": {"type": "int", "low": 2, "high": 16, "log": True, "default": 8},
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training of one setting in one region.

    Attributes:
        region: name of the region.
        setting: number of the setting.
        seed: of the training; seeds other than 0 show the effect of chance.
        val_auc: after each epoch; larger is better.
        val_loss: after each epoch.
        test: test_auc and test_loss of the best epoch's weights; empty if the training failed.
        seconds: its duration on the machine that made the table.
        error: why it failed; the epochs before the failure are kept.
    """

    region: str
    setting: int
    seed: int
    val_auc: list[float]
    val_loss: list[float]
    test: dict[str, float]
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class FlightsTable:
    """All trainings of all regions.

    Attributes:
        settings: points of the search space, with every parameter; the defaults are the first.
        trainings: in the order of setting, seed and region.
        made_with: versions of the libraries that the values depend on.
    """

    settings: list[dict[str, Any]]
    trainings: list[Training]
    made_with: dict[str, str]

    @property
    def regions(self) -> list[str]:
        """Return the regions' names, by airport and month."""
        return list(REGIONS)

    def curves(self, region: str, metric: str = "val_loss") -> Array:
        """Return a metric of the validation days, [settings, epochs]; NaN after a failure.

        Args:
            region: one of `regions`.
            metric: "val_loss", or "val_auc", where larger is better.
        """
        found = np.full((len(self.settings), EPOCHS), np.nan)
        for training in self._of(region):
            values = getattr(training, metric)
            found[training.setting, : len(values)] = values
        return found

    def losses(self, region: str) -> Array:
        """Return the val_loss of each setting's best epoch; NaN for failed trainings."""
        found = np.full(len(self.settings), np.nan)
        for training in self._of(region):
            if not training.error:
                found[training.setting] = min(training.val_loss)
        return found

    def test(self, region: str, metric: str = "test_loss") -> Array:
        """Return a metric of the test days at the epoch with the best val_auc; NaN after a failure.

        Args:
            region: one of `regions`.
            metric: "test_loss", or "test_auc", where larger is better.
        """
        found = np.full(len(self.settings), np.nan)
        for training in self._of(region):
            found[training.setting] = training.test.get(metric, np.nan)
        return found

    def seconds(self, region: str) -> Array:
        """Return the duration of each setting's training."""
        found = np.full(len(self.settings), np.nan)
        for training in self._of(region):
            found[training.setting] = training.seconds
        return found

    def seed_deviation(self, region: str) -> float:
        """Return the standard deviation of the defaults' loss over seeds; NaN for a single seed."""
        found = [min(x.val_loss) for x in self._by_region[region] if x.setting == 0 and not x.error]
        return float(np.std(found, ddof=1)) if len(found) > 1 else float("nan")

    @staticmethod
    def yesterday(region: str) -> str | None:
        """Return the month before at the same airport; None for January."""
        place = REGIONS.index(region)
        return REGIONS[place - 1] if place % 12 else None

    def _of(self, region: str) -> list[Training]:
        return [training for training in self._by_region[region] if training.seed == 0]

    @cached_property
    def _by_region(self) -> dict[str, list[Training]]:
        found: dict[str, list[Training]] = {region: [] for region in REGIONS}
        for training in self.trainings:
            found[training.region].append(training)
        return found


def read(path: Path = FILE) -> FlightsTable:
    """Return the table of a file.

    Raises:
        TrialfleetError: the checksum of the file is wrong.
    """
    content = path.read_bytes()
    beside = checksum_file(path)
    expected = beside.read_text().split()[0]
    if (found := hashlib.sha256(content).hexdigest()) != expected:
        raise TrialfleetError(f"{path} has SHA-256 {found}; {beside.name} has {expected}")
    about, settings, *lines = lzma.decompress(content).decode().splitlines()
    trainings = [Training(**json.loads(line)) for line in lines]
    return FlightsTable(json.loads(settings), trainings, json.loads(about)["made_with"])


def write(table: FlightsTable, path: Path = FILE) -> None:
    """Write a table and its checksum; the same table gives the same bytes."""
    about = {"schema": 1, "space": SPACE, "epochs": EPOCHS, "made_with": table.made_with}
    lines = [as_line(about), as_line(table.settings)]
    lines += [as_line(asdict(training)) for training in sorted(table.trainings, key=place_of)]
    content = lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    write_atomic(path, content)
    name = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    write_atomic(checksum_file(path), name)


def complete(trainings: Iterable[Training]) -> list[Training]:
    """Return the trainings of the first settings that all regions have."""
    found = sorted(trainings, key=place_of)
    regions: dict[tuple[int, int], int] = {}
    for training in found:
        key = (training.setting, training.seed)
        regions[key] = regions.get(key, 0) + 1
    count = 0
    while regions.get((count, 0)) == len(REGIONS):
        count += 1
    return [x for x in found if x.setting < count and regions[x.setting, x.seed] == len(REGIONS)]


def place_of(training: Training) -> tuple[int, int, int]:
    """Return the sort key of a training."""
    return training.setting, training.seed, REGIONS.index(training.region)


def as_line(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return an object as a line of JSON."""
    return json.dumps(value, separators=(",", ":")) + "\n"


def checksum_file(path: Path) -> Path:
    """Return the path of a table's checksum."""
    return path.with_name(f"{path.name}.sha256")
