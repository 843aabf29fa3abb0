"""The studies that `trialfleet init` writes."""

from __future__ import annotations

import shutil
import tempfile
from importlib import resources
from pathlib import Path

from trialfleet.errors import InputError

EXAMPLES = {
    "first": "trialfleet.templates.init",
    "flights": "trialfleet.workflows.examples.flights",
}
_NO_PART = {"__init__.py", "__pycache__", "data", "runs", "models"}


def write_example(name: str, folder: Path) -> Path:
    """Copy an example into a folder of its own and return its study file.

    Raises:
        InputError: the folder holds something already, or can't be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} exists already and is not empty; choose another folder")
    source = Path(str(resources.files(EXAMPLES[name])))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".init-", dir=folder.parent) as beside:
            whole = Path(beside) / "example"
            shutil.copytree(source, whole, ignore=lambda _, names: _NO_PART.intersection(names))
            whole.replace(folder)
    except OSError as error:
        raise InputError(f"{str(folder)!r} can't be written: {error}") from error
    return folder / "study.yaml"
