"""Checks of a trainer's command before a trial runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from trialfleet import nodes
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.study.paths import Problem, UnusableStudyError

PYTHONS = ("python3", "python")  # words of a command that mean the study's Python

_INTERPRETERS = re.compile(
    r"(python|pypy)[0-9.]*|(ba|da|z|k)?sh|Rscript|julia|node|perl|ruby|lua|octave"
)
CONTRACT = (
    *(nodes.TRIAL, nodes.HELPER, nodes.RESULT),
    *(nodes.PROGRESS, nodes.CHECKPOINT, nodes.MODEL),
)


def command_problems(
    command: Sequence[str], files: Iterable[str], data: Iterable[str], folder: Path
) -> Iterator[tuple[int, str]]:
    """Yield (index, problem) for each word of `command` that would fail in a trial's sandbox.

    Such a word names a missing file, or a program that isn't executable. The sandbox is the trial's
    working folder. It contains copies of `files` (paths), the data files `data` (names), and the
    files by which trialfleet and the trainer communicate, such as trial.json.
    """
    sent = {Path(file).name: Path(file) for file in files}
    there = {*sent, *data, *CONTRACT}
    for i, word in enumerate(command):
        if word.startswith(("/", "-")) or not word:
            continue
        if i and command[i - 1] == "-m":
            problem = _module_problem(word, there, folder)
        elif i == 0:
            problem = _program_problem(word, sent, there, folder)
        else:
            runs = i == 1 and _INTERPRETERS.fullmatch(PurePosixPath(command[0]).name) is not None
            problem = _argument_problem(word, sent, there, folder, is_script=runs)
        if problem:
            yield i, problem


def _program_problem(
    word: str, sent: dict[str, Path], sandbox_names: set[str], folder: Path
) -> str:
    if "/" not in word:
        if word in sent:
            return f"{word!r} is in trainer.files; to run it in a trial, write './{word}'"
        return ""
    if problem := _argument_problem(word, sent, sandbox_names, folder, is_script=True):
        return problem
    file = _sent_file(word, sent)
    if file and not os.access(file, os.X_OK):
        return (
            f"{word!r} is not executable: chmod +x {file.name}, or name its interpreter, such as "
            f"[sh, {word}]"
        )
    return ""


def _argument_problem(
    word: str, sent: dict[str, Path], sandbox_names: set[str], folder: Path, *, is_script: bool
) -> str:
    place = PurePosixPath(word)
    if place.parts[:1] and place.parts[0] in sandbox_names:
        file = _sent_file(word, sent)
        gone = file is not None and not file.exists() and (is_script or bool(place.suffix))
        return f"{word!r} is not in {str(sent[place.parts[0]])!r}" if gone else ""
    if not (place.suffix or (is_script and "/" in word)) or not re.match(r"[\w.]", word):
        return ""
    if place.name in sent:
        return (
            f"{word!r} is copied into a trial's folder without its parent folders; write "
            f"{place.name!r}"
        )
    if (folder / word).is_file():
        return f"{word!r} is beside the study, but not in trainer.files: add it there"
    if is_script:
        guess = did_you_mean(place.name, sent)
        return f"{word!r} is not in trainer.files{guess}: add it there, or trials won't find it"
    return ""


def _module_problem(word: str, sandbox_names: set[str], folder: Path) -> str:
    name = word.split(".", maxsplit=1)[0]
    found = [path for path in (folder / name, folder / f"{name}.py") if path.exists()]
    if not found or {name, f"{name}.py"} & sandbox_names:
        return ""
    return f"{found[0].name!r} is beside the study, but not in trainer.files: add it there"


def _sent_file(word: str, sent: dict[str, Path]) -> Path | None:
    place = PurePosixPath(word)
    top = sent.get(place.parts[0]) if place.parts else None
    return top.joinpath(*place.parts[1:]) if top else None


def check_program(word: str, job_path: str) -> None:
    """Raise UnusableStudyError if jobs, whose PATH is `job_path`, can't find the program `word`."""
    if "/" in word and not word.startswith("/"):
        return  # a file in the sandbox
    if shutil.which(word, path=job_path):
        return
    if word.startswith("/"):
        why = "is not executable" if Path(word).exists() else "does not exist"
    else:
        guess = did_you_mean(word, _programs(job_path))
        why = f"is not on the PATH of the pool's jobs, {job_path}{guess}"
    text = (
        f"{word!r} {why}; give the program's path, or add the program to trainer.files and run it "
        "as ./NAME"
    )
    raise UnusableStudyError(Problem(("trainer", "command", 0), text))


def _programs(job_path: str) -> set[str]:
    folders = filter(os.path.isdir, job_path.split(os.pathsep))
    files = (file for folder in folders for file in os.scandir(folder))
    return {file.name for file in files if os.access(file, os.X_OK) and file.is_file()}
