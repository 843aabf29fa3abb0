"""Prediction with the model that a trial left: the same numbers as in the trial."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from click.testing import CliRunner

from trialfleet.errors import InputError
from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, settings, table, train
from trialfleet.nodes.tabular.network import Network, compute_outputs, copy_weights
from trialfleet.nodes.tabular.predict import load_model
from trialfleet.nodes.tabular.steps import PlainSteps
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.models import prediction_file
from trialfleet.workflows.facts.runs.lookup import find_model
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.table_options import TableOptions
from trialfleet.workflows.tables import cells, csv_rows
from trialfleet.workflows.tables.encoding import encode
from trialfleet.workflows.tables.reading import read_rows
from trialfleet.workflows.tables.table_from_rows import build_table

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
    """The folder of a barely trained model; its table is next to it."""
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
    data = dataset.load(t, chosen)
    torch.manual_seed(0)
    network = Network(data.columns, chosen)
    previous = signal.getsignal(signal.SIGTERM)
    steps = PlainSteps(network, data, chosen, t.seed)
    train.Training(t, chosen, network, data, steps).fit()
    signal.signal(signal.SIGTERM, previous)
    train.save_model(t.model, copy_weights(network), data, chosen)
    torch.save(outputs_in_trial(network, data), folder / "outputs.pt")
    return t.model


def outputs_in_trial(network: Network, data: dataset.Dataset) -> torch.Tensor:
    """Return the outputs [rows, o] in the order of the table, as the trial itself computes them."""
    parts = [
        compute_outputs(network, rows.numeric, rows.categorical)
        for rows in (data.train, data.validation, data.test)
    ]
    return torch.stack(parts, 1).flatten(0, 1)  # 3 x [n, o] -> [n, 3, o] -> [3 n, o]


def rows_of(model: Path) -> list[dict[str, str]]:
    """Return the table's rows as a CSV file would have them."""
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


@pytest.mark.slow
def test_the_model_predicts_what_the_trial_computed(model: Path) -> None:
    predictions, computed = prediction_file.predict(model, rows_of(model)), expected(model)
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
    assert prediction_file.predict_file(model, path, out) == 5
    header, *lines = csv.reader(io.StringIO(out.getvalue()))
    assert header == ["note", "kind", "number", "predicted_y"]
    assert [line[:3] for line in lines] == [
        ['a "b",\nc', row["kind"], row["number"]] for row in rows
    ]
    predicted = prediction_file.predict(model, rows)
    if isinstance(predicted[0], str):
        assert [line[3] for line in lines] == predicted
    else:  # no more digits than 32 bits carry
        assert [float(line[3]) for line in lines] == pytest.approx(predicted, rel=1e-6)
        digits = 7 if "regression" not in str(model) else 8  # of 1150 ± 30: 7 of the 30
        assert max(len(line[3].strip("0.").replace(".", "")) for line in lines) <= digits


def test_many_rows_go_in_batches(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BATCH", 4)
    path = tmp_path / "rows.csv"
    path.write_text("kind,number\n" + "a,50\n" * 10)
    out = io.StringIO()
    assert prediction_file.predict_file(model, path, out) == 10
    assert len(set(out.getvalue().splitlines())) == 2  # the header and ten equal lines
    path.write_text("kind,number\n" + "a,50\n" * 6 + "a,?\n")
    with pytest.raises(ValueError, match="row 7 below the header, column 'number'"):
        prediction_file.predict_file(model, path, out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "no column number, kind; the model needs number, kind"),
        ("kind,Number\na,1\n", "no column number; the model needs number, kind"),
        (
            "kind,number\na,1\na,x1\n",
            "row 2 below the header, column 'number': 'x1' is not a number",
        ),
        (
            "kind,number\na,1e99\n",
            "row 1 below the header, column 'number': '1e99' is infinite or too large",
        ),
        ("kind,number\na,1\nb\n", "line 3 has 1 cell, the header 2"),
        ("kind,number\na,1,2\n", "line 2 has 3 cells, the header 2"),
    ],
)
def test_rows_that_cannot_be_predicted_are_named(
    model: Path, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        prediction_file.predict_file(model, path, io.StringIO())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "is not UTF-16 text"),
        (b"kind,number\na,1\nb,\xe9\n", "it has the byte 0xe9 in line 3, character 3; save it as"),
        (b"kind,number\na,1\n" + b"x" * 200_000 + b"\n", "line 3 has 1 cell, the header 2"),
        (b"kind,number\na,one\n", "row 1"),
        (b"", "is empty"),
    ],
)
def test_a_file_of_rows_that_cant_be_used_is_named(
    model: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_bytes(content)
    result = CliRunner().invoke(main, ["predict", str(model), str(rows)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {rows}: ")
    assert words in result.stderr


def test_rows_from_python_may_mix_types(tmp_path: Path) -> None:
    rows = {
        "y": [i % 7 + 0.5 for i in range(60)],
        "when": [dt.date(2026, 1, 1 + i % 28) for i in range(60)],
        "vip": [i % 3 == 0 for i in range(60)],
    }
    made, _ = build_table(pl.DataFrame(rows), "y", TableOptions(), 0)
    given = [
        {"when": dt.date(2026, 1, 5), "vip": True},
        {"when": "2026-01-05", "vip": np.bool_(1)},
        {"when": dt.datetime(2026, 1, 5), "vip": 1},
        {"when": np.datetime64("2026-01-05"), "vip": "true"},
    ]
    for each in [*([row] for row in given), given[:2], given[:3:2], given[1:3]]:
        frame = prediction_file.frame_of_rows(each)
        numeric, categorical = encode(cells.without_nulls(frame, []), made.columns, range(9))
        assert (numeric[:, 0] == (dt.date(2026, 1, 5) - dt.date(1970, 1, 1)).days).all()
        assert (categorical[:, 0] == 2).all()


@pytest.mark.parametrize("unused", [[dt.timedelta(1)], [b"x"], [[1]]])
def test_a_column_that_csv_can_not_hold_is_refused(
    model: Path, tmp_path: Path, unused: list[Any]
) -> None:
    file = tmp_path / "rows.parquet"
    pl.DataFrame({"number": [1.0], "kind": ["a"], "unused": unused}).write_parquet(file)
    with pytest.raises(ValueError, match="CSV can't hold the columns unused"):
        prediction_file.predict_file(model, file, io.StringIO())


def test_rows_from_python_need_every_column(model: Path) -> None:
    with pytest.raises(ValueError, match="there is no column kind"):
        prediction_file.predict(model, [{"number": "1"}, {"number": "2"}])


def test_a_folder_without_a_valid_model_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "nowhere")
    model = Path(shutil.copytree(model, tmp_path / "model"))
    description = json.loads((model / "model.json").read_text())
    for content in ("{}", "[]", "no JSON", json.dumps({**description, "settings": {"x": 1}})):
        (model / "model.json").write_text(content)
        with pytest.raises(ValueError, match="is not a model of `trainer: tabular`"):
            load_model(model)
    (model / "model.json").write_text(json.dumps(description))
    (model / "weights.pt").write_bytes(b"")
    with pytest.raises(ValueError, match="is not a model of `trainer: tabular`"):
        load_model(model)


def test_a_model_with_an_unknown_setting_is_refused(model: Path, tmp_path: Path) -> None:
    later = Path(shutil.copytree(model, tmp_path / "model"))
    description = json.loads((later / "model.json").read_text())
    description["settings"]["activation"] = "gelu"
    (later / "model.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="activation"):
        load_model(later)


def test_a_model_of_the_studys_own_trainer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.joblib").touch()
    with pytest.raises(ValueError, match=r"not a model of `trainer: tabular`.*: model.joblib"):
        load_model(tmp_path)


def test_predict_takes_a_regions_folder_as_its_latest_model(model: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_parquet_file_is_predicted_as_the_same_csv(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BATCH", 7)
    rows = rows_of(model)[:20]
    numbers = [float(row["number"]) if row["number"] else None for row in rows]
    frame = pl.DataFrame({"kind": [row["kind"] for row in rows], "number": numbers})
    frame.write_parquet(tmp_path / "rows.parquet")
    frame.write_csv(tmp_path / "rows.csv")
    texts = []
    for name in ("rows.csv", "rows.parquet"):
        out = io.StringIO()
        assert prediction_file.predict_file(model, tmp_path / name, out) == 20
        texts.append([*csv.reader(io.StringIO(out.getvalue()))])
    assert texts[0][0] == texts[1][0] == ["kind", "number", "predicted_y"]
    assert [line[2] for line in texts[0]] == [line[2] for line in texts[1]]


FORMS = [
    (gzip.compress, "kind,number\na,50\n"),
    (bytes, "sep=;\nkind;number\na;50\n"),
    (bytes, "\nkind|number|\na|50|\n"),
    (lambda text: text.decode().encode("utf-16"), "kind\tnumber\r\na\t50\r\n"),
]


@pytest.mark.parametrize(("pack", "text"), FORMS)
def test_predict_reads_the_same_csv_formats_as_training(
    model: Path, tmp_path: Path, pack: Callable[[bytes], bytes], text: str
) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(pack(text.encode()))
    with csv_rows.opened_csv(path) as opened:
        assert pl.concat(opened.frames).equals(read_rows(path, "csv"))
    out = io.StringIO()
    assert prediction_file.predict_file(model, path, out) == 1
    (tmp_path / "plain.csv").write_text("kind,number\na,50\n")
    plain = io.StringIO()
    prediction_file.predict_file(model, tmp_path / "plain.csv", plain)
    [header, row] = csv.reader(io.StringIO(out.getvalue()))
    assert header[:2] == ["kind", "number"]
    assert [*row[:2], row[-1]] == [*csv.reader(io.StringIO(plain.getvalue()))][1]


def test_list_columns_of_a_parquet_file_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    frame = pl.DataFrame({"kind": ["a"], "number": [1.0], "tags": [["x"]]})
    frame.write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="CSV can't hold the columns tags"):
        prediction_file.predict_file(model, tmp_path / "rows.parquet", io.StringIO())


def test_the_output_file_is_written_completely_or_not_at_all(model: Path, tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.csv", tmp_path / "predicted.csv"
    rows.write_text("kind,number\na,1\n")
    command = ["predict", str(model), str(rows), "-o", str(output)]
    assert CliRunner().invoke(main, command).exit_code == 0
    first = output.read_text()
    assert first.startswith("kind,number,predicted_y\na,1,")
    rows.write_text("kind,number\na,1\na,x\n")
    assert CliRunner().invoke(main, command).exit_code == 2
    assert output.read_text() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predicted.csv", "rows.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["binary"], indirect=True)
def test_standard_output_gets_all_or_nothing_and_rows_may_come_in_by_a_pipe(
    model: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "trialfleet", "predict", str(model), "-"]

    def predicted(rows: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, input=rows, capture_output=True, text=True)

    assert predicted("kind,number\na,1\n").stdout.startswith("kind,number,predicted_y\na,1,")
    bad = predicted("kind,number\na,1\na,x\n")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "row 2 below the header, column 'number': 'x' is not a number" in bad.stderr


def test_the_study_option_selects_one_of_several_studies_with_a_region(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.csv").write_text("kind,number\na,1\n")
    for study in ("own", "sales"):
        (tmp_path / "models" / study / "A").mkdir(parents=True)
    (tmp_path / "models/own/A/latest").symlink_to(tmp_path / "nowhere")
    (tmp_path / "models/sales/A/latest").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    asked = CliRunner().invoke(main, ["predict", "A", "rows.csv", "--study", "sales"])
    assert asked.exit_code == 0, asked.output
    asked = CliRunner().invoke(main, ["predict", "A", "rows.csv", "--study", "other"])
    assert asked.exit_code == 2, asked.output


@pytest.mark.slow
@pytest.mark.parametrize("model", ["binary"], indirect=True)
def test_a_closed_output_pipe_is_not_an_error(model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("kind,number\n" + "a,50\n" * 20_000)
    program = f"{shlex.quote(sys.executable)} -m trialfleet predict {model} rows.csv | head -1"
    done = subprocess.run(program, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("kind,number,predicted_y\n", "")


def test_prediction_encodes_dates_times_and_booleans_as_training_does(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "day": [
                dt.date(2026, 1, 1) + dt.timedelta(int(n)) for n in random.integers(0, 90, 200)
            ],
            "at": [dt.time(int(n)) for n in random.integers(0, 24, 200)],
            "vip": random.random(200) < 0.5,
            "y": random.random(200),
        }
    )
    made, _ = build_table(frame, "y", TableOptions(), 0)
    assert made.columns.kinds == {"day": "date", "at": "time", "vip": "boolean"}
    read = table.Columns(**json.loads(json.dumps(vars(made.columns))))  # as in a model's folder
    texts = [
        {"day": "2026-03-01", "at": "07:00", "vip": "True"},
        {"day": "2026-03-01T00:00:00Z", "at": "07:00:00", "vip": "true"},
    ]
    typed_rows = [{"day": dt.date(2026, 3, 1), "at": dt.time(7), "vip": True}]
    for rows in (texts, typed_rows):
        numeric, codes = encode(cells.without_nulls(pl.DataFrame(rows), []), read, range(1, 3))
        assert {tuple(row) for row in numeric.tolist()} == {(20513.0, 7.0)}
        assert set(codes[:, 0].tolist()) == {made.columns.categorical["vip"].index("true") + 1}


# Models by name


def publish(model: Path, models_folder: Path) -> None:
    models_folder.mkdir(parents=True)
    (models_folder / "latest").symlink_to(model)


@pytest.mark.parametrize(
    "models_folder",
    ["models/JFK", "models/flights/JFK", "flights/models/JFK", "flights/models/study/JFK"],
)
def test_a_model_is_found_by_its_regions_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models_folder: str
) -> None:
    publish(model, tmp_path / models_folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("kind,number\na,1\n")
    result = CliRunner().invoke(main, ["predict", "JFK", "rows.csv"])
    assert result.exit_code == 0
    assert "predicted_y" in result.output


def test_a_model_is_found_by_a_region_name_with_special_characters(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "São Paulo"
    publish(model, tmp_path / "models" / region_slug(name))
    monkeypatch.chdir(tmp_path)
    assert find_model(name) == Path("models") / region_slug(name) / "latest"


def test_an_ambiguous_or_unknown_name_is_refused_with_the_choices(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(model, tmp_path / "models/a/JFK")
    publish(model, tmp_path / "models/b/JFK")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"any of 2 models; name one of them: a/JFK, b/JFK"):
        find_model("JFK")
    with pytest.raises(InputError, match=r"did you mean 'JFK'\?\).* here: JFK"):
        find_model("JFJ")
    for name in ("models/a/JFK", "a/JFK"):
        assert find_model(name) == Path("models/a/JFK/latest")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="regions with models here: none"):
        find_model("JFK")


@pytest.mark.parametrize("parquet", [False, True])
def test_categories_that_the_model_does_not_know_are_counted(
    model: Path, tmp_path: Path, parquet: bool
) -> None:
    kinds = ["a", "c, e", None, "b", "zzz"]
    rows = pl.DataFrame({"kind": kinds, "number": [1.0] * 5})
    path = tmp_path / ("rows.parquet" if parquet else "rows.csv")
    rows.write_parquet(path) if parquet else rows.write_csv(path)
    result = CliRunner().invoke(main, ["predict", str(model), str(path)])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == (
        "kind: 2 of 5 rows have a category that the model doesn't know, such as 'c, e' "
        "(did you mean 'c, d'?): the predictions for these rows ignore it"
    )
    assert len(result.stdout.splitlines()) == 6
    rows.head(1).write_csv(tmp_path / "known.csv")
    known = CliRunner().invoke(main, ["predict", str(model), str(tmp_path / "known.csv")])
    assert "category" not in known.stderr


def test_the_error_names_an_output_file_whose_folder_is_missing(model: Path) -> None:
    words = ["predict", str(model), str(model.parent / "rows.csv"), "-o", "/nowhere/x.csv"]
    (model.parent / "rows.csv").write_text("number,kind\n1,a\n")
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 2
    assert "/nowhere/x.csv: No such file or directory" in shown.stderr
