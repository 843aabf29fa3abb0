"""Predict with a model folder that the reference trainer left."""

from __future__ import annotations

import csv
import itertools
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch

if __package__:
    from trialfleet.nodes import region, settings, table
    from trialfleet.nodes.network import Network, outputs_of
elif not TYPE_CHECKING:  # beside the trainer
    import region
    import settings
    import table
    from network import Network, outputs_of

BATCH = 65536  # rows in memory at once
_UNUSABLE = (ValueError, LookupError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A trained network and what its inputs mean."""

    columns: table.Columns
    numeric_scale: region.Scale
    target_scale: region.Scale
    network: Network

    @torch.no_grad()
    def predict(
        self, rows: Sequence[Mapping[str, str]], first_row: int = 1
    ) -> list[float] | list[str]:
        """Return a prediction per row, see `predict`; errors count the rows from `first_row`."""
        numbers, codes = self.columns.encode(rows, first_row)
        numeric = self.numeric_scale.standardise(torch.from_numpy(numbers))
        outputs = outputs_of(self.network, numeric, torch.from_numpy(codes))
        kind = region.kind_of(self.columns)
        if kind == "multiclass":
            return [self.columns.classes[code] for code in outputs.argmax(1).tolist()]
        flat = outputs.squeeze(1).double()  # [n, 1] -> [n]
        if kind == "binary":
            return [float(value) for value in flat.sigmoid()]
        return [float(value) for value in self.target_scale.restore(flat)]


def load_model(folder: Path) -> Model:
    """Read a model folder.

    Raises:
        ValueError: it is not the folder of a model of the reference trainer.
        OSError: a file is missing or can't be read.
    """
    try:
        text = (folder / "model.json").read_text(encoding="utf-8")
        description: dict[str, Any] = json.loads(text)
        columns = table.Columns(**description["columns"])
        network = Network(columns, settings.Settings.of(description["settings"]))
        network.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
        numeric = region.Scale.read(description["numeric_scale"])
        target = region.Scale.read(description["target_scale"])
    except _UNUSABLE as error:
        raise ValueError(f"{folder} holds no model of the tabular trainer: {error}") from error
    return Model(columns=columns, numeric_scale=numeric, target_scale=target, network=network)


def predict(folder: Path, rows: Iterable[Mapping[str, str]]) -> list[float] | list[str]:
    """Predict rows given as text, as a CSV file has them.

    Args:
        folder: a published model, or a trial's `model`.
        rows: column name → text. Further columns are ignored; an empty number is missing and
            stands for the training rows' mean; an unknown category has no opinion.

    Returns:
        Per row: the probability of the second class (two classes), the likeliest class (more), or
        the value (regression).

    Raises:
        ValueError: the folder holds no such model, or a row lacks a column or has text for a
            number; the message names row and column and the columns that the model needs.
    """
    return load_model(folder).predict(list(rows))


def predict_csv(folder: Path, rows: Path, out: TextIO) -> int:
    """Copy a CSV file with a header to `out`, a column with the prediction added at the end.

    The new column is called `predicted_` and the target's name.

    Returns:
        The number of rows.

    Raises:
        ValueError: as `predict`; or the file has no header, or rows longer than it.
        OSError: a file can't be read.
    """
    model = load_model(folder)
    name = f"predicted_{model.columns.target}"
    count = 0
    with rows.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or [])
        model.columns.check_header(header)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*header, name])
        while batch := list(itertools.islice(reader, BATCH)):
            _check_lengths(batch, count + 1)
            predictions = model.predict(batch, first_row=count + 1)
            for row, value in zip(batch, predictions, strict=True):
                writer.writerow([*(row[column] for column in header), value])
            count += len(batch)
    return count


def _check_lengths(batch: list[dict[str, Any]], first_row: int) -> None:
    """Raise ValueError for a row with more cells than the header (DictReader's key None)."""
    for number, row in enumerate(batch, start=first_row):
        if None in row:
            raise ValueError(f"row {number} is longer than the header")
