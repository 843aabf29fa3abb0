"""Prediction with the model that a trial left: the same numbers as in the trial."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from trialfleet.nodes import predict, region, settings, table, train, trial
from trialfleet.nodes.network import Network, outputs_of
from trialfleet.nodes.steps import PlainSteps
from trialfleet.workflows.command_line import main

ROWS = 300


def columns_of(task: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    number = random.normal(50, 10, ROWS).astype(np.float32)
    kind = random.choice(["a", "b", "c, d"], ROWS)
    target: dict[str, Any] = {
        "binary": np.where(number > 55, "late", "early"),
        "multiclass": np.digitize(number, [45, 55]),
        "regression": 3 * number + 1000,
    }
    number[3] = np.nan
    return {"y": target[task], "number": number, "kind": kind}


@pytest.fixture(scope="module", params=["binary", "multiclass", "regression"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a barely trained model; its table lies beside it."""
    folder = tmp_path_factory.mktemp(request.param)
    table.write_table(
        folder / "t.npz",
        columns_of(request.param),
        target="y",
        task="regression" if request.param == "regression" else "classification",
        split=np.arange(ROWS) % 3,
        categorical=["kind"],
    )
    t = trial.Trial(folder, {"data": ["t.npz"], "mode": "final"})
    chosen = settings.Settings(hidden=8, epochs=8, batch_size=16, learning_rate=0.02)
    data = region.load(t, chosen)
    torch.manual_seed(0)
    network = Network(data.columns, chosen)
    former = signal.getsignal(signal.SIGTERM)
    steps = PlainSteps(network, data, chosen, t.seed)
    train.Run(t, chosen, network, data, steps).fit()
    signal.signal(signal.SIGTERM, former)
    train.save_model(t.model, network, data, chosen)
    torch.save(outputs_in_trial(network, data), folder / "outputs.pt")
    return t.model


def outputs_in_trial(network: Network, data: region.Region) -> torch.Tensor:
    """The outputs [rows, o] in the order of the table, as the trial itself computes them."""
    parts = [
        outputs_of(network, rows.numeric, rows.categorical)
        for rows in (data.train, data.validation, data.test)
    ]
    return torch.stack(parts, 1).flatten(0, 1)  # 3 x [n, o] -> [n, 3, o] -> [3 n, o]


def rows_of(model: Path) -> list[dict[str, str]]:
    """The table's rows as a CSV file would have them."""
    found = table.read_table(model.parent / "t.npz")
    kinds = ["", *found.columns.categorical["kind"]]
    return [
        {"number": "" if np.isnan(number) else repr(float(number)), "kind": kinds[code]}
        for number, code in zip(found.numeric[:, 0], found.categorical[:, 0], strict=True)
    ]


def expected(model: Path) -> list[Any]:
    outputs = torch.load(model.parent / "outputs.pt")
    found = table.read_table(model.parent / "t.npz")
    if found.columns.task == "regression":
        target = found.target[found.split == table.TRAIN].astype(np.float64)
        return list(outputs[:, 0].double().numpy() * target.std() + target.mean())
    if outputs.shape[1] == 1:
        return list(outputs[:, 0].double().sigmoid().numpy())
    return [str(number) for number in outputs.argmax(1).tolist()]


def test_the_model_predicts_what_the_trial_computed(model: Path) -> None:
    predictions, computed = predict.predict(model, rows_of(model)), expected(model)
    assert len(set(predictions)) > 1
    if isinstance(predictions[0], str):
        assert predictions == computed
    else:
        assert predictions == pytest.approx(computed, rel=1e-6)


def test_a_csv_file_gets_a_column_at_its_end(model: Path, tmp_path: Path) -> None:
    rows = rows_of(model)[:5]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["note", "kind", "number"])
        writer.writeheader()
        writer.writerows({**row, "note": 'a "b",\nc'} for row in rows)
    out = io.StringIO()
    assert predict.predict_csv(model, path, out) == 5
    header, *lines = csv.reader(io.StringIO(out.getvalue()))
    assert header == ["note", "kind", "number", "predicted_y"]
    assert [line[:3] for line in lines] == [
        ['a "b",\nc', row["kind"], row["number"]] for row in rows
    ]
    assert [line[3] for line in lines] == [str(value) for value in predict.predict(model, rows)]


def test_many_rows_go_in_batches(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "BATCH", 4)
    path = tmp_path / "rows.csv"
    path.write_text("kind,number\n" + "a,50\n" * 10)
    out = io.StringIO()
    assert predict.predict_csv(model, path, out) == 10
    assert len(set(out.getvalue().splitlines())) == 2  # the header and ten equal lines
    path.write_text("kind,number\n" + "a,50\n" * 6 + "a,?\n")
    with pytest.raises(ValueError, match="row 7, column 'number'"):
        predict.predict_csv(model, path, out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column number, kind; the model needs number, kind"),
        ("kind,Number\na,1\n", "no column number; the model needs number, kind"),
        ("kind,number\na,1\na,x1\n", "row 2, column 'number': 'x1' is not a number"),
        ("kind,number\na,1e99\n", "row 1, column 'number': '1e99' is too large"),
        ("kind,number\na,1\nb\n", "row 2 is shorter"),
        ("kind,number\na,1,2\n", "row 1 is longer"),
    ],
)
def test_rows_that_cannot_be_predicted_are_named(
    model: Path, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        predict.predict_csv(model, path, io.StringIO())


def test_rows_from_python_need_every_column(model: Path) -> None:
    with pytest.raises(ValueError, match="row 2: there is no column kind"):
        predict.predict(model, [{"kind": "a", "number": "1"}, {"number": "2"}])


def test_a_folder_without_a_model_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        predict.load_model(tmp_path / "nowhere")
    model = Path(shutil.copytree(model, tmp_path / "model"))
    description = json.loads((model / "model.json").read_text())
    for content in ("{}", "[]", "no JSON", json.dumps({**description, "settings": {"x": 1}})):
        (model / "model.json").write_text(content)
        with pytest.raises(ValueError, match="holds no model of the tabular trainer"):
            predict.load_model(model)
    (model / "model.json").write_text(json.dumps(description))
    (model / "weights.pt").write_bytes(b"")
    with pytest.raises(ValueError, match="holds no model of the tabular trainer"):
        predict.load_model(model)


def test_a_regions_folder_stands_for_its_latest_model(model: Path, tmp_path: Path) -> None:
    region = tmp_path / "models" / "JFK"
    region.mkdir(parents=True)
    (region / "latest").symlink_to(model)
    rows = tmp_path / "rows.csv"
    rows.write_text("kind,number\na,1\n")
    found = [
        CliRunner().invoke(main, ["predict", str(folder), str(rows)])
        for folder in (region, region / "latest")
    ]
    assert [result.exit_code for result in found] == [0, 0]
    assert found[0].output == found[1].output
