"""Fit boosted trees to a region's points."""

import csv
import functools
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import trial

MODEL = "model.txt"


def main(t: trial.Trial) -> None:
    """Train with the trial's parameters and report the mean squared errors."""
    x, y = read(t.data[0])

    if t.mode == "evaluate":  # for the study's gate: measure these models on today's points
        guesses = {name: load(folder).predict(x) for name, folder in t.models.items()}
        guesses["baseline"] = np.full(len(y), y[:60].mean())  # always predicts the mean
        for name, guess in guesses.items():
            losses = (guess - y) ** 2
            errors = {"val_error": losses[60:90].mean(), "test_error": losses[90:].mean()}
            t.evaluated(name, losses[90:], **errors)
        t.complete()

    train = lightgbm.Dataset(x[:60], y[:60])

    def report(env: Any) -> None:  # LightGBM calls it after each round
        if (env.iteration + 1) % 20 == 0:
            t.report(env.iteration + 1, val_error=error(env.model, x[60:90], y[60:90]))

    settings = {
        "objective": "regression",
        "learning_rate": t.params["learning_rate"],
        "num_leaves": t.params["leaves"],
        "min_data_in_leaf": t.params["leaf_size"],
        "lambda_l2": t.params["ridge"],
        "num_threads": 1,
        "seed": t.seed,
        "verbose": -1,
    }
    model = lightgbm.train(settings, train, t.params["rounds"], callbacks=[report])
    if t.mode == "final":  # the full training with the best parameters: save the model
        model.save_model(t.model / MODEL)
    t.complete(
        val_error=error(model, x[60:90], y[60:90]),
        test_error=error(model, x[90:], y[90:]),
    )


def load(folder: Path) -> Any:
    """Return the model that mode "final" saved."""
    return lightgbm.Booster(model_file=folder / MODEL)


def error(model: Any, x: Any, y: Any) -> float:
    """Return the mean squared error of `model` on the points `x`, `y`."""
    return float(np.mean((model.predict(x) - y) ** 2))


@functools.cache  # read once for all trials of this process
def read(path: Path) -> tuple[Any, Any]:
    """Return the points of a CSV file: x as one column, and y."""
    with path.open() as file:
        points = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
    table = np.array(points)
    return table[:, :1], table[:, 1]


if __name__ == "__main__":
    trial.run(main)
