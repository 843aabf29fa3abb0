"""Fit one of two scikit-learn models to a region's points."""

import csv
import functools
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import trial
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

MODEL = "model.joblib"


def main(t: trial.Trial) -> None:
    """Train with a trial's parameters and report the errors."""
    x, y = read(t.data[0])

    if t.mode == "evaluate":  # for the study's gate: measure these models on today's points
        models = {name: joblib.load(folder / MODEL) for name, folder in t.models.items()}
        models["baseline"] = DummyRegressor().fit(x[:60], y[:60])  # always predicts the mean
        for name, model in models.items():
            losses = (model.predict(x[90:]) - y[90:]) ** 2
            t.evaluated(name, losses, **errors(model, x, y))
        t.complete()

    model = make_model(t.params, t.seed)
    model.fit(x[:60], y[:60])
    if t.mode == "final":  # the full training with the best parameters: save the model
        joblib.dump(model, t.model / MODEL)
    t.complete(**errors(model, x, y))


def make_model(params: dict[str, Any], seed: int) -> Any:
    """Return an untrained model of the kind `params["model"]`, with the parameters of this kind."""
    if params["model"] == "ridge":
        return make_pipeline(PolynomialFeatures(params["degree"]), Ridge(params["alpha"]))
    return RandomForestRegressor(params["trees"], max_depth=params["depth"], random_state=seed)


def errors(model: Any, x: Any, y: Any) -> dict[str, float]:
    """Return the mean squared errors on the validation and on the test points."""
    return {
        "val_error": mean_squared_error(y[60:90], model.predict(x[60:90])),
        "test_error": mean_squared_error(y[90:], model.predict(x[90:])),
    }


@functools.cache  # read once for all trials of this process
def read(path: Path) -> tuple[Any, Any]:
    """Return the points of a CSV file: x as one column, and y."""
    with path.open() as file:
        points = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
    table = np.array(points)
    return table[:, :1], table[:, 1]


if __name__ == "__main__":
    trial.run(main)
