"""Modules that a trainer's Python lacks, and how to install them."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from trialfleet.files import shell_quoted
from trialfleet.workflows.study.spec import Study, Trainer
from trialfleet.workflows.study.trainer_command import PYTHONS

_NO_MODULE = re.compile(r"\bModuleNotFoundError: No module named '(?P<name>[^'.]+)")
_SENT = {"trial"}  # modules that each trial receives
_MOST_FILES = 200  # that are read of a trainer
_SECONDS = 20.0
_PACKAGES = {  # whose names differ from their modules'
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
_ALIKE = {"joblib", "lightgbm", "numpy", "pandas", "polars", "scipy", "torch", "xgboost"}
_COMES_WITH = {"joblib": "sklearn", "threadpoolctl": "sklearn"}  # if that is missing as well
_ASKING = """\
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


def installation_advice(words: str, study: Study) -> str:
    """Return how to install the module that an error reports as missing, or "" for other errors.

    If the trainer's Python is on this machine, the text also names other missing modules that the
    trainer's files import.
    """
    found = _NO_MODULE.search(words)
    if found is None or not isinstance(study.trainer, Trainer):
        return ""
    name, word = found["name"], study.trainer.command[0]
    python, other = word, ""
    if word in PYTHONS:
        python = study.python or word
        other = "; or set `python:` in the study to a Python that has it"
    files = [Path(file) for file in study.trainer.files]
    where = "install it on the machines that run trials, with their Python"
    if study.image:
        where, other = f"add it to the image {study.image} with the image's Python", ""
        files = []  # no Python on this machine is asked
    missing = missing_modules(python, tuple(top_level_imports(files)))
    names = [name, *(each for each in missing if each != name)] if name in missing else [name]
    quoted = shell_quoted(Path(python)) if "/" in python else python
    is_known = {*names} <= {*_PACKAGES} | _ALIKE
    doubt = "" if is_known else " (the name of the package may differ)"
    return (
        f"if {name!r} is your own file, add it to trainer.files; otherwise {where}: "
        f"{quoted} -m pip install {' '.join(find_packages(names))}{doubt}{other}"
    )


def find_packages(modules: Sequence[str]) -> list[str]:
    """Return the packages to install for `modules`.

    A package that comes with another of these packages is left out.
    """
    needed = [name for name in modules if _COMES_WITH.get(name) not in modules]
    return [_PACKAGES.get(name, name) for name in needed]


def top_level_imports(files: Iterable[Path]) -> list[str]:
    """Return the modules that Python files import at their top level, sorted by name.

    The result omits Python's own modules, modules that are among the files, and imports in
    functions or `try`.
    """
    sent = list(files)
    own = {*_SENT, *(file.stem for file in sent)}
    found = {name for file in _python_files(sent) for name in _read_imports(file)}
    return sorted(found - own - sys.stdlib_module_names)


def _python_files(files: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for file in files:
        if file.is_dir():
            found += sorted(file.rglob("*.py"))
        elif file.suffix == ".py":
            found.append(file)
    return found[:_MOST_FILES]


def _read_imports(file: Path) -> Iterator[str]:
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for each in body:
        if isinstance(each, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.module.partition(".")[0]


@lru_cache(maxsize=16)
def missing_modules(python: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that a Python on this machine lacks, or () if it can't be run."""
    program = shutil.which(python)
    if program is None or not modules:
        return ()
    try:
        done = subprocess.run(
            [program, "-c", _ASKING, *modules],
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
        return tuple(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
