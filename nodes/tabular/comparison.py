"""Mode `evaluate`: published models, each measured on the rows of today's table.

Each model reads the table as it reads rows to predict: through its own columns, vocabularies and
scales, which may be older than the table. The losses are of the test rows, one model's beside the
other's.

Shapes: n rows, d numeric columns, k categorical columns, o outputs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if __package__:
    from trialfleet.nodes import trial
    from trialfleet.nodes.tabular import dataset, table
    from trialfleet.nodes.tabular.evaluation import metrics_of
    from trialfleet.nodes.tabular.network import loss_of, outputs_of
    from trialfleet.nodes.tabular.predict import Model, load_model
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    import dataset
    import table
    import trial
    from evaluation import metrics_of
    from network import loss_of, outputs_of
    from predict import Model, load_model

PARTS = {"val_": table.VALIDATION, "test_": table.TEST}


def compare(t: trial.Trial, device: torch.device) -> NoReturn:
    """Measure the trial's models and a constant prediction, and leave with the result."""
    source = table.read_table(t.data[0])
    held = held_out(source)
    try:
        models = {name: load_model(folder) for name, folder in t.models.items()}
    except (ValueError, OSError) as error:
        t.reject(f"a model can't be read: {error}")
    # one scale for all: the losses of a regression have the unit that the training's have
    scale = models["challenger"].target_scale
    for name, model in models.items():
        try:
            outputs, target = answers(model, held, scale, device)
        except ValueError as error:
            t.reject(f"the {name} can't be measured on today's data: {error}")
        measure(t, name, outputs, target, held, scale)
    outputs, target = constant(source, held, scale)
    measure(t, "baseline", outputs, target, held, scale)
    t.complete()


def held_out(source: table.Table) -> table.Table:
    """Return the rows that no model was trained on today."""
    rows = source.split != table.TRAIN
    names = ("numeric", "categorical", "target", "split")
    return dataclasses.replace(source, **{name: getattr(source, name)[rows] for name in names})


def measure(
    t: trial.Trial,
    name: str,
    outputs: Tensor,
    target: Tensor,
    source: table.Table,
    scale: dataset.Scale,
) -> None:
    """Tell the metrics of outputs [n, o] against target [n], and the losses of the test rows."""
    kind, deviation = source.columns.kind, scale.deviation.item()
    metrics: dict[str, float] = {}
    for prefix, code in PARTS.items():
        rows = torch.from_numpy(source.split == code)
        found = metrics_of(outputs[rows], target[rows], kind, deviation)
        metrics |= {prefix + metric: value for metric, value in found.items()}
    tested = torch.from_numpy(source.split == table.TEST)
    losses = loss_of(outputs[tested], target[tested], kind, reduction="none")
    t.evaluated(name, losses.double().tolist(), **metrics)


def answers(
    model: Model, source: table.Table, scale: dataset.Scale, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return a model's outputs [n, o] for a table's rows, and the target [n] in the same terms.

    Raises:
        ValueError: the table hasn't what the model needs, in words.
    """
    numeric, categorical = recode(source, model.columns)
    rows = model.numeric_scale.standardise(torch.from_numpy(numeric))
    network = model.network.to(device)
    outputs = outputs_of(network, rows, torch.from_numpy(categorical)).cpu()
    kind = source.columns.kind
    if kind == "regression":
        values = model.target_scale.restore(outputs)
        return scale.standardise(values), standardised(source, scale)
    known = {name: code for code, name in enumerate(model.columns.classes)}
    codes = torch.tensor([known[name] for name in source.columns.classes])
    target = codes[torch.from_numpy(source.target).long()]
    return outputs, target if kind == "multiclass" else target.float()


def constant(source: table.Table, held: table.Table, scale: dataset.Scale) -> tuple[Tensor, Tensor]:
    """Return, for held-out rows, what knows nothing but the training rows' targets; and the target.

    Outputs [n, o] and target [n], as `answers` does.
    """
    kind, rows = source.columns.kind, len(held.target)
    target = torch.from_numpy(held.target)
    trained = torch.from_numpy(source.target[source.split == table.TRAIN])
    if kind == "regression":
        mean = scale.standardise(trained.double().mean().reshape(1, 1))
        return mean.expand(rows, 1), standardised(held, scale)
    counts = torch.bincount(trained.long(), minlength=len(source.columns.classes)).double()
    shares = (counts + 1) / (counts + 1).sum()  # Laplace's rule: none is impossible
    if kind == "multiclass":
        return shares.log().float().expand(rows, -1), target.long()
    return shares[1].logit().float().expand(rows, 1), target


def standardised(source: table.Table, scale: dataset.Scale) -> Tensor:
    """Return the targets [n] of a regression on a scale."""
    return scale.standardise(torch.from_numpy(source.target).unsqueeze(1)).squeeze(1)


def recode(
    source: table.Table, wanted: table.Columns
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Return a table's rows as another table's columns have them: [n, d] and [n, k].

    A category that the model doesn't know becomes unknown to it, and so does one that is in none
    of the table's training rows: the table itself has forgotten it.

    Raises:
        ValueError: a column is missing or holds something else, or the target isn't the same.
    """
    columns = source.columns
    check_target(columns, wanted)
    check_columns(columns, wanted)
    places = [columns.numeric.index(name) for name in wanted.numeric]
    today = list(columns.categorical)
    codes = [
        recoded(source.categorical[:, today.index(name)], columns.categorical[name], vocabulary)
        for name, vocabulary in wanted.categorical.items()
    ]
    return source.numeric[:, places], table.stack(codes, len(source.target), np.int32)


def recoded(
    codes: npt.NDArray[np.int32], words: list[str], vocabulary: list[str]
) -> npt.NDArray[np.int32]:
    """Return codes [n] of one vocabulary as those of another; 0 where it lacks the word."""
    known = {word: code for code, word in enumerate(vocabulary, start=1)}
    return np.array([0, *(known.get(word, 0) for word in words)], np.int32)[codes]


def check_target(columns: table.Columns, wanted: table.Columns) -> None:
    """Raise ValueError unless a table asks for what a model predicts."""
    if (columns.target, columns.kind) != (wanted.target, wanted.kind):
        now, then = (f"{each.target!r} ({each.kind})" for each in (columns, wanted))
        raise ValueError(f"the target is {now}; the model predicts {then}")
    if new := [name for name in columns.classes if name not in wanted.classes]:
        raise ValueError(
            f"the model doesn't know the class {', '.join(map(repr, new))} of {columns.target!r}; "
            f"it knows {', '.join(map(repr, wanted.classes))}"
        )


def check_columns(columns: table.Columns, wanted: table.Columns) -> None:
    """Raise ValueError unless a table has a model's columns, and they hold the same."""
    wanted.check_header(columns.needed)
    for name in wanted.needed:
        if (name in columns.numeric) is not (name in wanted.numeric):
            now, then = ("numbers", "categories")[:: 1 if name in columns.numeric else -1]
            raise ValueError(f"the column {name!r} holds {now}; the model takes {then}")
        now, then = (_unit(each.kinds.get(name, "number or text")) for each in (columns, wanted))
        if now != then:
            raise ValueError(f"the column {name!r} is read as {now}; the model takes {then}")


def _unit(kind: str) -> str:
    """Return what a kind of cells comes to, however they are written."""
    if "%" in kind:
        return "date"
    return "number or text" if kind.startswith("decimal_") else kind
