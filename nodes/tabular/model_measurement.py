"""Measures two models on the validation and test rows of today's table, for the gate.

Each model reads the table with its own columns, vocabularies and scales, as for a prediction.

Shapes: n rows, d numeric columns, k categorical columns, o outputs.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, table
from trialfleet.nodes.tabular.evaluation import compute_metrics
from trialfleet.nodes.tabular.network import compute_loss, compute_outputs
from trialfleet.nodes.tabular.predict import Model, load_model

SHOWN = 3  # maximum columns in a note
PARTS = {"val_": table.VALIDATION, "test_": table.TEST}


def compare(t: trial.Trial, device: torch.device) -> NoReturn:
    """Measure the trial's models and a constant prediction, and exit with the result.

    Reject the trial if a model can't be read or does not fit the table.
    """
    source = table.read_table(t.data[0])
    # The validation and test rows, with which no model was trained today.
    held = select_rows(source, source.split != table.TRAIN)
    try:
        models = {name: load_model(folder) for name, folder in t.models.items()}
    except (ValueError, OSError) as error:
        t.reject(f"a model can't be read: {error}")
    # One scale for all models, so that a regression's losses have the same unit as in training.
    scale = models["challenger"].target_scale
    unseen = UnseenCategories({}, np.zeros(len(held.target), bool))
    found = {}
    for name, model in models.items():
        try:
            if name == "champion":
                unseen = unseen_categories(model.columns, held)
            found[name] = answers(model, held, scale, device)
        except ValueError as error:
            t.reject(f"the {name} can't be measured on today's data: {error}")
    seen = torch.from_numpy(~unseen.rows)
    for name, (outputs, target) in found.items():
        measure(t, name, outputs, target, held, scale, unseen.note if name == "champion" else "")
        if unseen.rows.any():  # measure again, without rows with categories new to the champion
            rows = select_rows(held, ~unseen.rows)
            measure(t, f"{name}_seen", outputs[seen], target[seen], rows, scale)
    outputs, target = constant(source, held, scale)
    measure(t, "baseline", outputs, target, held, scale)
    t.complete()


def select_rows(source: table.Table, rows: npt.NDArray[np.bool_]) -> table.Table:
    """Return the rows of a table for which `rows` is True."""
    names = ("numeric", "categorical", "target", "split")
    return dataclasses.replace(source, **{name: getattr(source, name)[rows] for name in names})


def measure(
    t: trial.Trial,
    name: str,
    outputs: Tensor,
    target: Tensor,
    source: table.Table,
    scale: dataset.Scale,
    note: str = "",
) -> None:
    """Report a model's metrics, and its loss for each test row.

    `outputs` [n, o] and `target` [n] belong to the rows of `source`. In a regression, both are
    standardised by `scale`. `note` is a remark for people.
    """
    kind, deviation = source.columns.kind, scale.deviation.item()
    metrics: dict[str, float] = {}
    for prefix, code in PARTS.items():
        rows = torch.from_numpy(source.split == code)
        if not rows.any():
            continue
        found = compute_metrics(outputs[rows], target[rows], kind, deviation)
        metrics |= {prefix + metric: value for metric, value in found.items()}
    tested = torch.from_numpy(source.split == table.TEST)
    losses = compute_loss(outputs[tested], target[tested], kind, reduction="none")
    t.evaluated(name, losses.double().tolist(), note, **metrics)


def answers(
    model: Model, source: table.Table, scale: dataset.Scale, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return a model's outputs [n, o] for the rows of `source`, and the target [n] of these rows.

    In a regression, `scale` standardises both, so that all models' losses have the same unit. In a
    classification, the target has the model's class numbers, which may differ from the table's.
    Raise ValueError if `source` doesn't fit the model.
    """
    numeric, categorical = recode(source, model.columns)
    rows = model.numeric_scale.standardise(torch.from_numpy(numeric))
    network = model.network.to(device)
    outputs = compute_outputs(network, rows, torch.from_numpy(categorical)).cpu()
    kind = source.columns.kind
    if kind == "regression":
        values = model.target_scale.restore(outputs)
        return scale.standardise(values), standardise_targets(source, scale)
    known = table.category_codes(model.columns.classes)
    codes = torch.tensor([known[table.category(name)] - 1 for name in source.columns.classes])
    target = codes[torch.from_numpy(source.target).long()]
    return outputs, target if kind == "multiclass" else target.float()


def constant(source: table.Table, held: table.Table, scale: dataset.Scale) -> tuple[Tensor, Tensor]:
    """Return the same prediction [n, o] for each row of `held`, and the target [n] of these rows.

    `source` is the region's table, and `held` has its validation and test rows. In a regression,
    the prediction is the mean target of the training rows. `scale` standardises the prediction and
    the target. In a classification, each class is predicted with its share of the training rows.
    """
    kind, rows = source.columns.kind, len(held.target)
    target = torch.from_numpy(held.target)
    trained = torch.from_numpy(source.target[source.split == table.TRAIN])
    if kind == "regression":
        mean = scale.standardise(trained.double().mean().reshape(1, 1))
        return mean.expand(rows, 1), standardise_targets(held, scale)
    counts = torch.bincount(trained.long(), minlength=len(source.columns.classes)).double()
    shares = (counts + 1) / (counts + 1).sum()  # Laplace's rule: no probability is 0
    if kind == "multiclass":
        return shares.log().float().expand(rows, -1), target.long()
    return shares[1].logit().float().expand(rows, 1), target


def standardise_targets(source: table.Table, scale: dataset.Scale) -> Tensor:
    """Return a regression's targets [n], standardised by `scale`."""
    return scale.standardise(torch.from_numpy(source.target).unsqueeze(1)).squeeze(1)


def recode(
    source: table.Table, wanted: table.Columns
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
    """Return a table's numeric [n, d] and categorical [n, k] columns, encoded for a model.

    `wanted` are the model's columns. A category that the model doesn't know becomes unknown. Raise
    ValueError if the target or a column doesn't fit the model.
    """
    columns = source.columns
    check_target(columns, wanted)
    check_columns(columns, wanted)
    missing = np.full(len(source.target), np.nan)
    numeric = [
        missing if name in columns.empty else source.numeric[:, columns.numeric.index(name)]
        for name in wanted.numeric
    ]
    codes = [
        np.zeros(len(source.target), np.int32)
        if name in columns.empty
        else translate_codes(*categorical_column(source, name), vocabulary)
        for name, vocabulary in wanted.categorical.items()
    ]
    count = len(source.target)
    return table.stack(numeric, count, np.float64), table.stack(codes, count, np.int32)


def categorical_column(source: table.Table, name: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the codes [n] of a categorical column, and its vocabulary."""
    place = [*source.columns.categorical].index(name)
    return source.categorical[:, place], source.columns.categorical[name]


def translate_codes(
    codes: npt.NDArray[np.int32], words: list[str], vocabulary: list[str]
) -> npt.NDArray[np.int32]:
    """Return `codes` [n] of the vocabulary `words` as codes of `vocabulary`.

    A word that `vocabulary` doesn't have gets the code 0.
    """
    known = table.category_codes(vocabulary)
    return np.array([0, *(known.get(table.category(word), 0) for word in words)], np.int32)[codes]


class UnseenCategories(NamedTuple):
    """The categories of a table that a model has never seen."""

    # For each column with such categories: the number of rows that contain one, and an example.
    columns: dict[str, tuple[int, str]]
    rows: npt.NDArray[np.bool_]  # [n], true for rows with an unknown category

    @property
    def note(self) -> str:
        """A text for people about these categories. It is "" if there are none."""
        if not self.columns:
            return ""
        columns = [
            f"{name!r} in {count} of them, such as {word!r}"
            for name, (count, word) in self.columns.items()
        ]
        more = f" and {len(columns) - SHOWN} more columns" if len(columns) > SHOWN else ""
        return (
            f"{self.rows.sum()} of {len(self.rows)} validation and test rows hold values that the "
            f"champion never saw: {'; '.join(columns[:SHOWN])}{more}"
        )


def unseen_categories(wanted: table.Columns, source: table.Table) -> UnseenCategories:
    """Return the table's categories that a model with the columns `wanted` has never seen.

    Raise ValueError if the table lacks a column of the model, or has it with another type.
    """
    check_columns(source.columns, wanted)
    columns: dict[str, tuple[int, str]] = {}
    rows = np.zeros(len(source.target), bool)
    for name, vocabulary in wanted.categorical.items():
        if name in source.columns.empty:
            continue
        codes, words = categorical_column(source, name)
        unknown = (codes > 0) & (translate_codes(codes, words, vocabulary) == 0)
        if unknown.any():
            columns[name] = int(unknown.sum()), words[codes[unknown][0] - 1]
        rows |= unknown
    return UnseenCategories(columns, rows)


def check_target(columns: table.Columns, wanted: table.Columns) -> None:
    """Raise ValueError unless a model predicts a table's target and knows all its classes.

    `columns` are the table's, and `wanted` are the model's.
    """
    if (columns.target, columns.kind) != (wanted.target, wanted.kind):
        now, then = (f"{each.target!r} ({each.kind})" for each in (columns, wanted))
        raise ValueError(f"the target is {now}, but the model predicts {then}")
    known = table.category_codes(wanted.classes)
    if new := [name for name in columns.classes if table.category(name) not in known]:
        raise ValueError(
            f"the model doesn't know the class {', '.join(map(repr, new))} of {columns.target!r}; "
            f"it knows {', '.join(map(repr, wanted.classes))}"
        )


def check_columns(columns: table.Columns, wanted: table.Columns) -> None:
    """Raise ValueError unless a table has all columns that a model needs, with the same types.

    `columns` are the table's, and `wanted` are the model's.
    """
    wanted.check_header([*columns.needed_columns, *columns.empty])
    for name in wanted.needed_columns:
        if name in columns.empty:
            continue
        if (name in columns.numeric) is not (name in wanted.numeric):
            now, then = ("numbers", "categories")[:: 1 if name in columns.numeric else -1]
            raise ValueError(f"the column {name!r} holds {now}; the model takes {then}")
        now, then = (
            _kind_unit(each.kinds.get(name, "number or text")) for each in (columns, wanted)
        )
        if now != then:
            raise ValueError(f"the column {name!r} is read as {now}; the model takes {then}")


def _kind_unit(kind: str) -> str:
    if "%" in kind:
        return "date"
    return "number or text" if kind.startswith("decimal_") else kind
