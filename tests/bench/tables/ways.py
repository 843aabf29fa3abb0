"""The ways to learn a table: ours, scikit-learn's network, LightGBM, and a constant.

All get the same arrays: the columns that `plan` uses, in the rows of its split. Each tries the same
number of settings. The validation rows choose among the settings, and among a network's epochs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trialfleet.nodes.tabular.table import TEST, TRAIN, VALIDATION, Table, save_table

EPOCHS, PATIENCE = 60, 8
Values = npt.NDArray[np.float64]


class Setting(NamedTuple):
    """A setting of the search; a network uses all of it, trees only the seed and the leaves."""

    seed: int
    learning_rate: float
    hidden: int
    layers: int
    batch_size: int
    weight_decay: float
    leaves: int


def settings(count: int, seed: int) -> Iterator[Setting]:
    """Yield random settings, the same for every way to learn."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield Setting(
            seed=int(random.integers(1 << 30)),
            learning_rate=float(10 ** random.uniform(-3.2, -2)),
            hidden=int(2 ** random.integers(5, 8)),
            layers=int(random.integers(1, 4)),
            batch_size=int(2 ** random.integers(5, 8)),
            weight_decay=float(10 ** random.uniform(-5, -2)),
            leaves=int(2 ** random.integers(3, 6)),
        )


class Errors(NamedTuple):
    """RMSE of a regression, cross-entropy of classes."""

    validation: float
    test: float


def error_of(source: Table, guess: Values, part: int) -> float:
    """Return the error of predictions: a value per row, or the second class's probability."""
    rows = source.split == part
    target = source.target[rows].astype(np.float64)
    if source.columns.task == "regression":
        return float(np.sqrt(np.square(guess[rows] - target).mean()))
    sure = np.clip(guess[rows], 1e-7, 1 - 1e-7)
    return float(-np.where(target > 0.5, np.log(sure), np.log(1 - sure)).mean())


def errors_of(source: Table, guess: Values) -> Errors:
    """Return the errors of predictions for all rows."""
    return Errors(*(error_of(source, guess, part) for part in (VALIDATION, TEST)))


def ours(source: Table, setting: Setting, work: Path) -> Errors:
    """Train as a trial does."""
    import torch

    from trialfleet.nodes import trial
    from trialfleet.nodes.tabular import dataset, train
    from trialfleet.nodes.tabular.evaluation import evaluate
    from trialfleet.nodes.tabular.network import Network
    from trialfleet.nodes.tabular.settings import Settings
    from trialfleet.nodes.tabular.steps import PlainSteps

    torch.set_num_threads(1)
    save_table(work / "table.npz", source, compressed=False)
    metric = "rmse" if source.columns.task == "regression" else "loss"
    objective = {"metric": f"val_{metric}", "direction": "minimize"}
    order = {"seed": setting.seed, "objective": objective, "data": ["table.npz"]}
    t = trial.Trial(work, order)
    chosen = Settings(
        epochs=EPOCHS,
        patience=PATIENCE,
        **{name: getattr(setting, name) for name in _OF_NETWORKS},
    )
    data = dataset.load(t, chosen)
    torch.manual_seed(t.seed)
    network = Network(data.columns, chosen)
    steps = PlainSteps(network, data, chosen, t.seed)
    train.Training(t, chosen, network, data, steps).fit()
    return Errors(
        evaluate(network, data.validation, data, "")[metric],
        evaluate(network, data.test, data, "")[metric],
    )


_OF_NETWORKS = ("learning_rate", "hidden", "layers", "batch_size", "weight_decay")


def scikit(source: Table, setting: Setting, _work: Path) -> Errors:
    """Train scikit-learn's network epoch by epoch, and use the best epoch, as ours does."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    rows, target, restore = _prepared(source)
    trained = source.split == TRAIN
    is_regression = source.columns.task == "regression"
    network = (MLPRegressor if is_regression else MLPClassifier)(
        hidden_layer_sizes=(setting.hidden,) * setting.layers,
        learning_rate_init=setting.learning_rate,
        batch_size=setting.batch_size,
        alpha=setting.weight_decay,
        random_state=setting.seed,
    )
    best, waited = Errors(math.inf, math.inf), 0
    classes = {} if is_regression else {"classes": np.unique(target)}
    for _ in range(EPOCHS):
        network.partial_fit(rows[trained], target[trained], **classes)
        guess = network.predict(rows) if is_regression else network.predict_proba(rows)[:, 1]
        found = errors_of(source, restore(guess))
        best, waited = (found, 0) if found.validation < best.validation else (best, waited + 1)
        if waited == PATIENCE:
            break
    return best


def _prepared(source: Table) -> tuple[Values, Values, Callable[[Values], Values]]:
    """Return a table as its pipelines prepare it: imputed, scaled, a column per category."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    trained = source.split == TRAIN
    numeric = source.numeric.astype(np.float64)
    parts = []
    if numeric.shape[1]:
        scale = make_pipeline(SimpleImputer(), StandardScaler()).fit(numeric[trained])
        parts.append(scale.transform(numeric))
    if source.categorical.shape[1]:
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        parts.append(encoder.fit(source.categorical[trained]).transform(source.categorical))
    target = source.target.astype(np.float64)
    if source.columns.task != "regression":
        return np.hstack(parts), target, lambda guess: guess
    mean, deviation = target[trained].mean(), target[trained].std()
    return np.hstack(parts), (target - mean) / deviation, lambda guess: guess * deviation + mean


def lightgbm(source: Table, setting: Setting, _work: Path) -> Errors:
    """Train trees until the error of the validation rows no longer falls."""
    from lightgbm import LGBMClassifier, LGBMRegressor, early_stopping

    _, target, restore = _prepared(source)
    rows = np.hstack([source.numeric.astype(np.float64), source.categorical])
    is_regression = source.columns.task == "regression"
    trees = (LGBMRegressor if is_regression else LGBMClassifier)(
        n_estimators=2000,
        learning_rate=0.05,
        num_leaves=setting.leaves,
        random_state=setting.seed,
        n_jobs=1,
        verbose=-1,
    )
    trained, validated = source.split == TRAIN, source.split == VALIDATION
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trees.fit(
            rows[trained],
            target[trained],
            eval_set=[(rows[validated], target[validated])],
            categorical_feature=[*range(source.numeric.shape[1], rows.shape[1])],
            callbacks=[early_stopping(30, verbose=False)],
        )
        guess = trees.predict(rows) if is_regression else trees.predict_proba(rows)[:, 1]
    return errors_of(source, restore(np.asarray(guess, np.float64)))


def constant(source: Table, _setting: Setting, _work: Path) -> Errors:
    """Predict the training rows' mean."""
    mean = source.target[source.split == TRAIN].astype(np.float64).mean()
    return errors_of(source, np.full(len(source.target), mean))


WAYS: dict[str, Callable[[Table, Setting, Path], Errors]] = {
    "ours": ours,
    "scikit": scikit,
    "lightgbm": lightgbm,
    "constant": constant,
}


def best_of(way: str, source: Table, chosen: Iterator[Setting], work: Path) -> Errors:
    """Return the errors of the setting that is best on the validation rows."""
    found = [WAYS[way](source, setting, work) for setting in chosen]
    return min(found, key=lambda errors: errors.validation)
