"""Models as MLflow loads them: their description, and equal predictions."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.unit.export.exported_models import add_model
from tests.unit.tabular.small_trials import copy_trainer, start, write_order
from trialfleet import predict
from trialfleet.nodes.tabular.predict import load_model
from trialfleet.nodes.tabular.table import save_table
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.export.mlflow_models import MlflowServer
from trialfleet.workflows.control.export.published_models import read_published
from trialfleet.workflows.control.export.pyfunc_files import (
    CODE,
    build_schema,
    describe_pyfunc,
    write_pyfunc,
)
from trialfleet.workflows.control.models.latest import switch_to_newest
from trialfleet.workflows.facts.models.folders import planning_time, read_provenance
from trialfleet.workflows.study.export import Mlflow
from trialfleet.workflows.study.table_options import TableOptions
from trialfleet.workflows.tables.reading import read_rows
from trialfleet.workflows.tables.table_from_rows import build_table

ROWS = 240
TASKS = ["binary", "multiclass", "regression"]
HEADER = ["y", "amount", "age", "code", "zip", "day", "at", "vip", "plan"]
# Rows of a later day: gaps, unknown categories, only whole numbers in `amount`.
NEW_ROWS = """\
age,code,zip,day,at,vip,plan,amount,more
31,7,01067,2026-05-01,07:30,true,pro,70,x
,8,01099,,08:15,,basic,20,y
45,,99999,2026-05-03,,false,,30,z
50,12,,2026-05-04,23:59,true,gold,,
"""


def write_rows(file: Path, task: str) -> None:
    random = np.random.default_rng(0)
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(HEADER)
        for number in range(ROWS):
            amount, plan = random.normal(50, 10), random.choice(["basic", "pro", "free"])
            targets = {
                "binary": "late" if amount > 55 else "early",
                "multiclass": ["low", "middle", "high"][int(amount > 45) + int(amount > 55)],
                "regression": 3 * amount + 1000,
            }
            age = "" if number % 9 == 0 else random.integers(18, 90)
            code, place = random.choice([7, 8, 9]), random.choice(["01067", "01099"])
            day = f"2026-{random.integers(1, 5):02}-{random.integers(1, 28):02}"
            at, vip = f"{random.integers(24):02}:15", random.choice(["true", "false"])
            rows.writerow([targets[task], amount, age, code, place, day, at, vip, plan])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of models that the trainer left, by task."""
    found = {}
    for task in TASKS:
        folder = tmp_path_factory.mktemp(task)
        copy_trainer(folder, kernels=False)
        write_rows(folder / "rows.csv", task)
        options = TableOptions(columns={"code": "categorical", "zip": "categorical"})
        made, _ = build_table(read_rows(folder / "rows.csv", "csv"), "y", options, 0)
        save_table(folder / "r.npz", made)
        metric = {"metric": "val_loss", "direction": "minimize"}
        write_order(folder, mode="final", objective=metric)
        with start(folder) as trainer:
            _, errors = trainer.communicate()
        assert trainer.returncode == 0, errors
        found[task] = folder / "model"
    return found


def publish(tmp_path: Path, left: Path, region: str = "A") -> Path:
    """Publish what a trainer left, by hand; return the folder of its region's models."""
    models_folder = tmp_path / "models" / "demo" / region
    published = add_model(models_folder, "r1", 0)
    shutil.copytree(left, published, dirs_exist_ok=True)
    created = planning_time(published)
    assert created
    switch_to_newest(published, created)
    return models_folder


def written(models_folder: Path, folder: Path) -> dict[str, Any]:
    """Return MLmodel's description of a model."""
    from ruamel.yaml import YAML

    [model] = read_published(models_folder).models.values()
    pyfunc = describe_pyfunc(model)
    assert pyfunc
    folder.mkdir()
    write_pyfunc(folder, pyfunc, read_provenance(model), {"run_id": "1"})
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(folder / "MLmodel")
    return found


def types_of(text: str) -> dict[str, str]:
    return {column["name"]: column["type"] for column in json.loads(text)}


LOADED = """
import importlib, json, sys
import pandas as pd
sys.modules["trialfleet"] = None  # there is none where the model is loaded
sys.path.insert(0, sys.argv[1])
loader = importlib.import_module(sys.argv[2])
rows = pd.read_csv(sys.argv[4], dtype={"zip": str})
print(json.dumps(loader._load_pyfunc(sys.argv[3]).predict(rows).to_list()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_mlmodel_names_the_columns_and_its_code_needs_no_trialfleet(
    trained: dict[str, Path], tmp_path: Path, task: str
) -> None:
    models_folder = publish(tmp_path, trained[task])
    found = written(models_folder, tmp_path / "beside")
    columns = load_model(trained[task]).columns
    inputs = types_of(found["signature"]["inputs"])
    assert list(inputs) == columns.needed_columns
    assert {name for name in inputs if inputs[name] == "string"} == {"zip", "plan"}
    output = "string" if task == "multiclass" else "double"
    assert types_of(found["signature"]["outputs"]) == {"predicted_y": output}
    kinds = found["metadata"]["columns"]
    assert kinds["amount"] == "number"
    assert kinds["code"] == "category"
    assert (kinds["day"], kinds["at"], kinds["vip"]) == ("date", "time", "boolean")
    rows = build_schema(trained[task])
    assert rows
    assert {each["name"]: each["type"] for each in rows["mlflow_colspec"]} == {
        **dict.fromkeys(["day", "at", "code", "zip", "plan"], "string"),
        "amount": "double",
        "age": "double",
        "vip": "boolean",
        "y": "double" if task == "regression" else "string",
    }
    flavour = found["flavors"]["python_function"]
    assert flavour["code"] == CODE
    assert (tmp_path / "beside" / flavour["env"]["virtualenv"]).exists()
    required = (tmp_path / "beside" / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in required} > {"torch", "polars", "numpy"}
    assert not [line for line in required if "+" in line]
    code, name = tmp_path / "beside" / CODE, flavour["loader_module"]
    new = tmp_path / "new.csv"
    new.write_text(NEW_ROWS)
    command = [sys.executable, "-c", LOADED, str(code), name, str(models_folder / "r1"), str(new)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with new.open(newline="") as file:
        assert json.loads(done.stdout) == predict(models_folder / "r1", csv.DictReader(file))
    again = written(models_folder, tmp_path / "again")
    assert again == found


OWN = """
from pathlib import Path

class Model:
    def __init__(self, factor):
        self.factor = factor

    def predict(self, rows):
        return rows["x"] * self.factor

def load(folder):
    return Model(float((Path(folder) / "weights").read_text()))
"""


def leave_own(folder: Path) -> Path:
    folder.mkdir()
    (folder / "predict.py").write_text(OWN)
    (folder / "weights").write_text("2.5")
    (folder / "requirements.txt").write_text("scipy>=1\n")
    signature = {"inputs": {"x": "double"}, "outputs": {"y": "double"}}
    (folder / "signature.json").write_text(json.dumps(signature))
    return folder


def test_a_trainers_own_predict_and_signature_are_exported(tmp_path: Path) -> None:
    models_folder = publish(tmp_path, leave_own(tmp_path / "left"))
    found = written(models_folder, tmp_path / "beside")
    assert types_of(found["signature"]["inputs"]) == {"x": "double"}
    assert types_of(found["signature"]["outputs"]) == {"y": "double"}
    requirements = (tmp_path / "beside" / "requirements.txt").read_text().split()
    assert requirements == ["mlflow", "pandas", "scipy>=1"]
    (models_folder / "r1" / "signature.json").write_text("[]")
    assert "signature" not in written(models_folder, tmp_path / "without")


def test_other_models_and_a_trainers_own_mlmodel_stay_as_they_are(tmp_path: Path) -> None:
    left = leave_own(tmp_path / "left")
    assert describe_pyfunc(left)
    (left / "MLmodel").touch()
    assert describe_pyfunc(left) is None
    assert describe_pyfunc(add_model(tmp_path / "models", "r1", 0)) is None


# On a real server

PREDICTED = """
import sys
import mlflow, pandas as pd
sys.modules["trialfleet"] = None  # there is none where the model is loaded
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_registry_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
rows = pd.read_csv(sys.argv[3], dtype={"zip": str})
print(*model.predict(rows).to_list(), sep="\\n")
"""


def predicted_by_mlflow(uri: str, name: str, rows: Path) -> list[str]:
    command = [sys.executable, "-c", PREDICTED, uri, f"models:/{name}@champion", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=rows.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def export(uri: str, models_folder: Path, tmp_path: Path) -> None:
    settings = Mlflow(uri=uri, experiment=tmp_path.name)
    MlflowServer(settings, tmp_path / "records").export(read_published(models_folder), None)


@pytest.mark.slow
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("task", TASKS)
def test_mlflow_predicts_what_trialfleet_predicts(
    uri: str, trained: dict[str, Path], tmp_path: Path, task: str
) -> None:
    from mlflow import MlflowClient

    models_folder, rows = publish(tmp_path, trained[task], f"P-{task}"), tmp_path / "new.csv"
    export(uri, models_folder, tmp_path)
    there = MlflowClient(uri, uri)
    version = there.get_model_version_by_alias(f"demo.P-{task}", "champion")
    [used] = there.get_run(str(version.run_id)).inputs.dataset_inputs
    assert json.loads(used.dataset.schema) == build_schema(trained[task])
    kept = read_rows(trained[task].parent / "rows.csv", "csv").drop("y")
    for text in (NEW_ROWS, kept.write_csv()):
        rows.write_text(text)
        done = CliRunner().invoke(main, ["predict", str(models_folder / "r1"), str(rows)])
        assert done.exit_code == 0, done.output
        here = [row["predicted_y"] for row in csv.DictReader(io.StringIO(done.stdout))]
        predicted = predicted_by_mlflow(uri, f"demo.P-{task}", rows)
        assert len(set(here)) > 1
        if task != "multiclass":
            digits = load_model(trained[task]).significant_digits
            here = [f"{float(value):.{digits}g}" for value in here]
            predicted = [f"{float(value):.{digits}g}" for value in predicted]
        assert predicted == here


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_mlflow_loads_the_model_of_a_users_own_trainer(uri: str, tmp_path: Path) -> None:
    models_folder = publish(tmp_path, leave_own(tmp_path / "left"), "own")
    export(uri, models_folder, tmp_path)
    rows = tmp_path / "rows.csv"
    rows.write_text("x,more\n1.5,a\n4.25,b\n")
    assert predicted_by_mlflow(uri, "demo.own", rows) == ["3.75", "10.625"]
