"""Predictions with a model of the built-in trainer."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trialfleet.nodes.tabular import dataset, settings, table
from trialfleet.nodes.tabular.network import Network, compute_outputs

DIGITS = 7  # significant digits of float32
_UNUSABLE = (ValueError, LookupError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A trained network, with the columns and scales of its inputs."""

    columns: table.Columns
    numeric_scale: dataset.Scale
    target_scale: dataset.Scale
    network: Network

    @property
    def significant_digits(self) -> int:
        """The number of significant digits with which to print predictions.

        If the target's mean is much larger than its deviation, all predictions begin with the same
        digits. The result is DIGITS more than the number of these digits, and at most 17.
        """
        ratio = self.target_scale.mean.abs() / self.target_scale.deviation
        return min(17, DIGITS + max(0, math.floor(math.log10(max(1.0, ratio.item())))))

    @torch.no_grad()
    def predict(
        self, numeric: table.Floats, categorical: npt.NDArray[np.int32]
    ) -> list[float] | list[str]:
        """Return a prediction for each row. The rows are encoded like the region's table.

        In a regression, a prediction is the target's value. With two classes, it is the probability
        of the second class. With more classes, it is the name of the likeliest class. numeric is
        [n, d], with NaN for a missing value. categorical is [n, k], with 0 for an unknown value.
        """
        scaled = self.numeric_scale.standardise(torch.from_numpy(numeric))
        outputs = compute_outputs(self.network, scaled, torch.from_numpy(categorical))
        if self.columns.kind == "multiclass":
            return [self.columns.classes[code] for code in outputs.argmax(1).tolist()]
        flat = outputs.squeeze(1).double()  # [n, 1] -> [n]
        if self.columns.kind == "binary":
            return [float(value) for value in flat.sigmoid()]
        return [float(value) for value in self.target_scale.restore(flat)]


def load_model(folder: Path) -> Model:
    """Return the model that a trial has saved in `folder`.

    Raise OSError if it can't be read, and ValueError if it isn't a model of the built-in trainer.
    """
    if folder.is_dir() and not (folder / "model.json").exists():
        left = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise ValueError(
            f"{folder} is not a model of `trainer: tabular`; trialfleet can't predict with models "
            f"of other trainers. The folder has: {left}"
        )
    try:
        text = (folder / "model.json").read_text(encoding="utf-8")
        description: dict[str, Any] = json.loads(text)
        columns = table.Columns(**description["columns"])
        network = Network(columns, settings.Settings.from_params(description["settings"]))
        network.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
        numeric = dataset.Scale.read(description["numeric_scale"])
        target = dataset.Scale.read(description["target_scale"])
    except KeyError as error:  # perhaps the model of another trainer
        why = f"its model.json lacks {error}"
        raise ValueError(f"{folder} is not a model of `trainer: tabular`: {why}") from error
    except _UNUSABLE as error:
        raise ValueError(f"{folder} is not a model of `trainer: tabular`: {error}") from error
    return Model(columns=columns, numeric_scale=numeric, target_scale=target, network=network)
