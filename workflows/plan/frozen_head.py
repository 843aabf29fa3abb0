"""Where a run was planned, its day, and where its models lie, by a few words of its study.yaml.

They are read without the study's types and without the rest of the file: pydantic takes longer to
import than all of `trialfleet rollback` takes, and a study of a thousand regions longer to parse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from trialfleet.errors import InputError
from trialfleet.workflows.names import NO_MODELS
from trialfleet.workflows.plan.folder import RunFolder


@dataclass(frozen=True)
class FrozenHead:
    """What `RUN/study.yaml` says of a run and its models.

    Attributes:
        folder: where it was planned.
        of_day: the day that its costs are put to, as `FrozenStudy` has it.
        publish: its publish folder, or what stands for none.
    """

    run: str
    folder: str
    of_day: date
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
    """Return what is known of a run without reading its study.

    Raises:
        InputError: the folder holds no run, or was moved since it was planned.
    """
    try:
        head = read_head(folder.study)
    except (OSError, ValueError):  # of another release; or it can say what is wrong with it
        from trialfleet.workflows.study.frozen import load_frozen

        frozen = load_frozen(folder.study)
        study = frozen.study
        head = FrozenHead(frozen.run, frozen.folder, frozen.of_day, study.name, study.publish)
    check_place(folder.root, Path(head.folder))
    return head


_WANTED = ("run:", "folder:", "created:", "day:", "  date:", "study:", "  name:", "  publish:")


def read_head(path: Path) -> FrozenHead:
    """Return what a run's study.yaml says, wherever it lies.

    Raises:
        ValueError: the file is no frozen study.
        OSError: it can't be read.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    with path.open(encoding="utf-8") as file:
        text = "".join(_wanted(file))
    reader: Any = YAML(typ="safe", pure=True)
    try:
        tree = reader.load(text)
        study, day = tree["study"], tree.get("day")
        planned = datetime.fromisoformat(tree["created"]).astimezone()
        of_day = date.fromisoformat(day["date"]) if day else planned.date()
        run, folder, name, publish = tree["run"], tree["folder"], study["name"], study["publish"]
    except (YAMLError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: no frozen study: {error}") from error
    if not all(isinstance(each, str) for each in (run, folder, name, publish)):
        raise ValueError(f"{path}: no frozen study: its names are no texts")
    return FrozenHead(run, folder, of_day, name, publish)


def _wanted(lines: Iterable[str]) -> Iterator[str]:
    """The lines of the keys that are wanted, and those on which their values go on.

    Only a key of the study, or of the day, stands behind two blanks: what belongs to such a key
    stands behind more.
    """
    in_part = is_wanted = False
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if indent == 0:
            in_part = line.startswith(("day:", "study:"))
        if indent == 0 or (in_part and indent == 2):
            is_wanted = line.startswith(_WANTED)
        if is_wanted:
            yield line
