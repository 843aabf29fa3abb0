"""docs/tabular.md is correct: settings, metrics, keys, files, and snippets that run."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from trialfleet.nodes.tabular.settings import METRICS, Settings
from trialfleet.nodes.tabular.table import read_table
from trialfleet.optimizer.space import SearchSpace
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.study.table_options import NULL_VALUES, TableOptions
from trialfleet.workflows.tables.reading import CSV, PARQUET

PAGE = (Path(__file__).parents[3] / "docs/tabular.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_every_setting_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([\w.]+) \| .*… |^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE
    )
    documented = {name or other: default or word for name, default, other, word in rows}
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(defaults) <= set(documented)
    for name, default in defaults.items():
        number = isinstance(default, int | float)
        assert (float(documented[name]) if number else documented[name]) == default, name


def test_the_page_has_every_metric_file_ending_and_null_value() -> None:
    names = {name for metrics in METRICS.values() for name in metrics} | {"loss", *NULL_VALUES}
    for word in [*names, *CSV, *PARQUET, ".npz"]:
        assert f"`{word}`" in PAGE, word


def test_the_studies_are_valid() -> None:
    shortest, keys = (YAML(typ="safe").load(text) for text in blocks("yaml"))
    study = Study.model_validate({**shortest, **keys})
    assert (study.trainer, study.target) == ("tabular", "churned")
    assert set(keys["table"]) == set(TableOptions.model_fields)
    space = SearchSpace.model_validate(shortest["search_space"])
    Settings.from_params(space.trial_params(space.defaults()))


def test_the_error_of_a_column_that_is_not_there_is_what_plan_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [shown] = [text.removesuffix("\n") for text in blocks("text") if "there is no column" in text]
    shortest = blocks("yaml")[0].replace("target: churned", "target: churn")
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(shortest)
    Path("data").mkdir()
    for region in ("north", "south"):
        Path(f"data/{region}.csv").write_text("id,amount,churned\n1,7,no\n2,9,yes\n")
    printed = CliRunner().invoke(main, ["plan", "study.yaml"])
    assert printed.exit_code == 2
    output = printed.stderr.strip().replace(f"{tmp_path}/", "")
    begin, end = shown.split("…")
    assert output.startswith(begin)
    assert output.endswith(end)


def test_the_table_from_python_is_written(tmp_path: Path) -> None:
    [program] = [text for text in blocks("python") if "write_table" in text]
    (tmp_path / "data").mkdir()
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    made = read_table(tmp_path / "data/north.npz")
    assert made.columns.classes == ["no", "yes"]
