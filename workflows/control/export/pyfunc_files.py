"""The files with which MLflow loads a published model: `MLmodel`, requirements and code.

The code is a copy of this library's modules for predictions, as a package with its own name. So
MLflow can load the model without trialfleet, or next to any release of trialfleet.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trialfleet.files import object_or_empty, read_json, unless_damaged
from trialfleet.nodes.tabular.table import Columns
from trialfleet.workflows.control.export.pyfunc_loader import PREDICT

MLMODEL, SIGNATURE, REQUIREMENTS = "MLmodel", "signature.json", "requirements.txt"
CODE = "trialfleet_code"  # a folder next to the model's files
_PYTHON = "python_env.yaml"
_LOADER = "workflows/control/export/pyfunc_loader.py"
# The modules that a prediction with a model of `trainer: tabular` imports from this library.
_TABULAR = (
    "errors.py",
    "objective.py",
    "sections.py",
    "spelling.py",
    "nodes/__init__.py",
    "nodes/trial.py",
    *(
        f"nodes/tabular/{name}.py"
        for name in ("dataset", "network", "predict", "settings", "table")
    ),
    "workflows/control/models/prediction_file.py",
    "workflows/study/table_options.py",
    *(
        f"workflows/tables/{name}.py"
        for name in ("amounts", "cells", "csv_rows", "dates_and_times", "encoding", "reading")
    ),
)
_TABULAR_PACKAGES = ("numpy", "pandas", "polars", "pydantic", "torch")
_DATA_TYPES = {"number": "double", "boolean": "boolean"}  # by kind; other kinds are strings
_IMPORT = re.compile(r"^( *from )trialfleet\b", re.MULTILINE)
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")


@dataclass(frozen=True, kw_only=True)
class Pyfunc:
    """The files and texts that MLflow needs to load a model.

    `modules` are modules of this library to copy with the model. `requirements` are lines for
    requirements.txt. `inputs` and `outputs` map a prediction's columns to MLflow's types.
    """

    modules: tuple[str, ...]
    requirements: tuple[str, ...]
    inputs: dict[str, str]
    outputs: dict[str, str]
    metadata: dict[str, Any] = field(default_factory=dict)


def describe_pyfunc(model: Path) -> Pyfunc | None:
    """Return what MLflow needs to load a model, or None if MLflow can't load it or needs nothing.

    MLflow can load a model of `trainer: tabular`, or a model with a file `predict.py`. It needs
    nothing more if the trainer wrote a file `MLmodel`.
    """
    if (model / MLMODEL).exists():
        return None
    if (model / PREDICT).is_file():
        signature = object_or_empty(lambda: read_json(model / SIGNATURE))
        own = unless_damaged(lambda: (model / REQUIREMENTS).read_text(encoding="utf-8"), "")
        return Pyfunc(
            modules=(),
            requirements=("mlflow", "pandas", *own.splitlines()),
            inputs=object_or_empty(lambda: signature["inputs"]),
            outputs=object_or_empty(lambda: signature["outputs"]),
        )
    columns = read_columns(model)
    if columns is None or not (model / "weights.pt").is_file():
        return None
    output = "string" if columns.kind == "multiclass" else "double"
    return Pyfunc(
        modules=_TABULAR,
        requirements=("mlflow", *map(_requirement, _TABULAR_PACKAGES)),
        inputs=_inputs(columns),
        outputs={f"predicted_{columns.target}": output},
        metadata={"task": columns.kind, "target": columns.target, "columns": column_kinds(columns)},
    )


def read_columns(model: Path) -> Columns | None:
    """Return the columns of a model of `trainer: tabular`, or None for other models."""
    return unless_damaged(lambda: Columns(**read_json(model / "model.json")["columns"]), None)


def build_schema(model: Path) -> dict[str, Any] | None:
    """Return a model's columns and target as MLflow's data schema, or None if they are unknown."""
    columns = read_columns(model)
    if columns is None:
        return None
    kinds = column_kinds(columns) | {columns.target: "category" if columns.classes else "number"}
    return {
        "mlflow_colspec": [
            {"type": _DATA_TYPES.get(kind, "string"), "name": name, "required": False}
            for name, kind in kinds.items()
        ]
    }


def column_kinds(columns: Columns) -> dict[str, str]:
    """Return each column's kind: number, category, or the kind of its cells, such as date."""
    kinds = dict.fromkeys(columns.numeric, "number") | dict.fromkeys(
        columns.categorical, "category"
    )
    return {name: columns.kinds.get(name, kind) for name, kind in kinds.items()}


def write_pyfunc(
    folder: Path, pyfunc: Pyfunc, card: Mapping[str, Any], of_mlflow: Mapping[str, Any]
) -> None:
    """Write into the empty `folder` the files with which MLflow loads a model.

    `card` is the model's card. `of_mlflow` has MLflow's own entries for the file MLmodel, such as
    MLflow's version.
    """
    package = _write_code(folder / CODE, pyfunc.modules)
    signature = {
        name: json.dumps([{"type": t, "name": n, "required": True} for n, t in columns.items()])
        for name, columns in (("inputs", pyfunc.inputs), ("outputs", pyfunc.outputs))
        if columns
    }
    flavour = {
        "loader_module": package,
        "code": CODE,
        "env": {"virtualenv": _PYTHON},
        "python_version": platform.python_version(),
    }
    description = {
        **of_mlflow,
        "utc_time_created": str(card.get("created")),
        "metadata": pyfunc.metadata,
        "flavors": {"python_function": flavour},
        **({"signature": {**signature, "params": None}} if "inputs" in signature else {}),
    }
    python = {
        "python": platform.python_version(),
        "build_dependencies": ["pip"],
        "dependencies": [f"-r {REQUIREMENTS}"],
    }
    for name, content in ((MLMODEL, description), (_PYTHON, python)):  # JSON is YAML, too
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = "".join(f"{line}\n" for line in pyfunc.requirements)
    (folder / REQUIREMENTS).write_text(lines, encoding="utf-8")


def _write_code(folder: Path, modules: Iterable[str]) -> str:
    root = resources.files("trialfleet")
    texts = {name: root.joinpath(name).read_text(encoding="utf-8") for name in modules}
    texts["__init__.py"] = root.joinpath(_LOADER).read_text(encoding="utf-8")
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    package = f"trialfleet_{digest[:12]}"
    for name, text in texts.items():
        file = folder / package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_IMPORT.sub(rf"\g<1>{package}", text), encoding="utf-8")
    return package


def _inputs(columns: Columns) -> dict[str, str]:
    """Return MLflow's type for each column that a model reads. `any` stands for no type.

    MLflow refuses whole numbers for `double` and numbers for `string`. But the type of a pandas
    column depends on the values in it, which may be whole numbers one day and fractions the next.
    So a column gets a type only if its cells are plain text, and no text in the column's vocabulary
    looks like a number.
    """
    return dict.fromkeys(columns.numeric, "any") | {
        name: "any" if name in columns.kinds or any(map(_is_number, words)) else "string"
        for name, words in columns.categorical.items()
    }


def _is_number(text: str) -> bool:
    """Return whether a text looks like a number. 04 does not, because of its leading zero."""
    try:
        float(text)
    except ValueError:
        return False
    return not _LEADING_ZERO.match(text)


def _requirement(package: str) -> str:
    """Return a package's line of requirements.txt, with the installed release."""
    try:
        return f"{package}=={version(package).partition('+')[0]}"
    except PackageNotFoundError:
        return package
