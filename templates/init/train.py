"""A small trainer that fits a polynomial to a region's points by gradient descent.

It only needs Python and takes a second, so that you can watch a whole run. Replace it by your own
training, and keep the calls of `t`, which trialfleet needs. If a job has several trials,
`trial.run` calls `main` for each of them.
"""

import csv
import functools
import json
from pathlib import Path

import trial

Point = tuple[float, float]


def main(t: trial.Trial) -> None:
    """Train with a trial's parameters and report the errors."""
    points = read(t.data[0])
    train, validation, test = points[:60], points[60:90], points[90:]

    if t.mode == "evaluate":  # for the study's gate: measure these models on today's points
        models = {name: load(folder) for name, folder in t.models.items()}
        models["baseline"] = [mean([y for _, y in train])]  # always predicts the mean
        for name, weights in models.items():
            losses = squares(weights, test)
            t.evaluated(name, losses, val_error=error(weights, validation), test_error=mean(losses))
        t.complete()

    weights = [0.0] * (t.params["degree"] + 1)
    velocity = [0.0] * len(weights)
    first = 0
    if saved := t.restore():  # the trial was interrupted: continue from its checkpoint
        first, weights, velocity = json.loads((saved / "state.json").read_text())

    for step in range(first, t.params["steps"]):
        for i, slope in enumerate(slopes(weights, train)):
            velocity[i] = t.params.get("momentum", 0.0) * velocity[i] - slope
            weights[i] += t.params["learning_rate"] * velocity[i]
        if step % 100 == 99:
            t.report(step + 1, val_error=error(weights, validation))
            if t.should_stop():  # early stopping predicts that this trial won't be the best
                t.stop(val_error=error(weights, validation))
        if t.should_checkpoint():  # every few minutes, or when the machine is being vacated
            with t.checkpoint() as folder:
                state = [step + 1, weights, velocity]
                (folder / "state.json").write_text(json.dumps(state))
            t.yield_node()

    if t.mode == "final":  # the full training with the best parameters: save the model
        (t.model / "weights.json").write_text(json.dumps(weights))
    t.complete(val_error=error(weights, validation), test_error=error(weights, test))


@functools.cache  # read once for all trials of this process
def read(path: Path) -> list[Point]:
    """Return the points (x, y) of a CSV file."""
    with path.open() as file:
        return [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]


def load(model: Path) -> list[float]:
    """Return the weights of a model that mode "final" saved."""
    weights: list[float] = json.loads((model / "weights.json").read_text())
    return weights


def value(weights: list[float], x: float) -> float:
    """Return the polynomial at x."""
    return sum(weight * x**power for power, weight in enumerate(weights))


def squares(weights: list[float], points: list[Point]) -> list[float]:
    """Return the squared error at each point."""
    errors = [value(weights, x) - y for x, y in points]
    return [each * each for each in errors]


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def error(weights: list[float], points: list[Point]) -> float:
    """Return the mean squared error."""
    return mean(squares(weights, points))


def slopes(weights: list[float], points: list[Point]) -> list[float]:
    """Return the gradient of the error."""
    misses = [(x, value(weights, x) - y) for x, y in points]
    return [
        sum(2 * miss * x**power for x, miss in misses) / len(points)
        for power in range(len(weights))
    ]


if __name__ == "__main__":
    trial.run(main)
