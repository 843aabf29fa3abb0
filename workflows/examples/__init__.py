"""The studies that `trialfleet init` writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trialfleet.errors import InputError

_HERE = Path(__file__).parent
_FIRST = _HERE.parent.parent / "templates" / "init"
_POINTS = "points"  # the first study's data, which other examples also use

_WITH_POINTS = ("sklearn", "lightgbm", "r", "shell", "ddp", "pipeline")
_OTHERS = ("notebook", "flights", "tabular")
# Each example's folder by its name, in the order of the help text.
EXAMPLES = {"first": _FIRST} | {name: _HERE / name for name in (*_WITH_POINTS, *_OTHERS)}
PREPARE = "prepare.py"  # makes an example's data
_NO_PART = {"__init__.py", "__pycache__", "data", "runs", "models"}


def write_example(name: str, folder: Path) -> Path:
    """Copy the example `name` into a new or empty folder, and return the path of its study file.

    Raises:
        InputError: the folder is not empty, or can't be written.
    """
    # a killed call leaves a hidden folder; no example has hidden files that could replace others
    if folder.exists() and (not folder.is_dir() or any(folder.glob("[!.]*"))):
        raise InputError(
            f"{str(folder)!r} exists already and is not an empty folder; choose another"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".init-", dir=folder) as inside:
            whole = Path(inside) / "example"
            _copy(EXAMPLES[name], whole)
            if name in _WITH_POINTS:
                _copy(_FIRST / _POINTS, whole / _POINTS)
            for part in whole.iterdir():
                part.replace(folder / part.name)
    except OSError as error:
        raise InputError(f"{str(folder)!r} can't be written: {error}") from error
    return folder / "study.yaml"


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=lambda _, names: _NO_PART.intersection(names))


def prepare_example(folder: Path) -> bool:
    """Run the example's program that makes its data. Return whether it succeeded."""
    return subprocess.run([sys.executable, str(folder / PREPARE)], check=False).returncode == 0
