"""docs/tabular.md says what is so: settings, metrics, keys, files, and snippets that run."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from trialfleet.nodes.tabular.settings import METRICS, Settings
from trialfleet.nodes.tabular.table import read_table
from trialfleet.optimizer.space import SearchSpace
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.study.table_options import NULL_VALUES, TableOptions
from trialfleet.workflows.tables.reading import CSV, PARQUET

PAGE = (Path(__file__).parents[3] / "docs/tabular.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_setting_stands_there_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([\w.]+) \| .*… |^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE
    )
    documented = {name or other: default or word for name, default, other, word in rows}
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(defaults) <= set(documented)
    for name, default in defaults.items():
        number = isinstance(default, int | float)
        assert (float(documented[name]) if number else documented[name]) == default, name


def test_every_metric_file_and_missing_text_stands_there() -> None:
    names = {name for metrics in METRICS.values() for name in metrics} | {"loss", *NULL_VALUES}
    for word in [*names, *CSV, *PARQUET, ".npz"]:
        assert f"`{word}`" in PAGE, word


def test_the_studies_are_valid() -> None:
    shortest, keys = (YAML(typ="safe").load(text) for text in blocks("yaml"))
    study = Study.model_validate({**shortest, **keys})
    assert (study.trainer, study.target) == ("tabular", "churned")
    assert set(keys["table"]) == set(TableOptions.model_fields)
    space = SearchSpace.model_validate(shortest["search_space"])
    Settings.of(space.complete(space.defaults()))


def test_the_table_from_python_is_written(tmp_path: Path) -> None:
    [program] = [text for text in blocks("python") if "write_table" in text]
    (tmp_path / "data").mkdir()
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    made = read_table(tmp_path / "data/north.npz")
    assert made.columns.classes == ["no", "yes"]
