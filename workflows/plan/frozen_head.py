"""Where a run was planned and where its models lie, by the few words of `RUN/study.yaml` on that.

They are read without the study's types and without the rest of the file: pydantic takes longer to
import than all of `trialfleet rollback` takes, and a study of a thousand regions longer to parse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet.errors import InputError
from trialfleet.workflows.names import NO_MODELS
from trialfleet.workflows.plan.folder import RunFolder


@dataclass(frozen=True)
class FrozenHead:
    """Where a run and its models lie.

    Attributes:
        folder: where it was planned.
        publish: its publish folder, or what stands for none.
    """

    run: str
    folder: str
    study: str
    publish: str

    @property
    def publishes(self) -> bool:
        """Whether the best settings are trained in full and published."""
        return self.publish != NO_MODELS


def check_place(found: Path, planned: Path) -> None:
    """Refuse a run that was moved since it was planned; a link to it, say, is the same run.

    Raises:
        InputError: it was moved.
    """
    if not planned.is_dir() or not planned.samefile(found):
        raise InputError(
            f"{str(found)!r} was planned as {str(planned)!r}, and its files name each other so; "
            "move it back, or plan the study anew"
        )


def head_of(folder: RunFolder) -> FrozenHead:
    """Return where a run and its models lie.

    Raises:
        InputError: the folder holds no run, or was moved since it was planned.
    """
    try:
        head = _read(folder.study)
    except (OSError, ValueError):  # of another release; or it can say what is wrong with it
        from trialfleet.workflows.study.frozen import load_frozen

        frozen = load_frozen(folder.study)
        head = FrozenHead(frozen.run, frozen.folder, frozen.study.name, frozen.study.publish)
    check_place(folder.root, Path(head.folder))
    return head


_WANTED = ("run:", "folder:", "study:", "  name:", "  publish:")


def _read(path: Path) -> FrozenHead:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    with path.open(encoding="utf-8") as file:
        text = "".join(_wanted(file))
    reader: Any = YAML(typ="safe", pure=True)
    try:
        tree = reader.load(text)
        study = tree["study"]
        found = (tree["run"], tree["folder"], study["name"], study["publish"])
    except (YAMLError, LookupError, TypeError) as error:
        raise ValueError(str(error)) from error
    if not all(isinstance(each, str) for each in found):
        raise ValueError(str(found))
    return FrozenHead(*found)


def _wanted(lines: Iterable[str]) -> Iterator[str]:
    """The lines of the keys that are wanted, and those on which their values go on.

    Only a key of the study stands behind two blanks: what belongs to a key stands behind more.
    """
    in_study = is_wanted = False
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if indent == 0:
            in_study = line.startswith("study:")
        if indent == 0 or (in_study and indent == 2):
            is_wanted = line.startswith(_WANTED)
        if is_wanted:
            yield line
