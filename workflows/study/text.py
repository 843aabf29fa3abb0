"""Parsing of a study file's text into a tree, with limits on its size, depth and aliases.

The text is YAML 1.2 (ruamel.yaml), in which `NO` is a text (Norway) and not `false`, and `1e-4` is
a number. The parser refuses tags, and aliases that expand to too many values, before it builds the
values.
"""

from __future__ import annotations

import re
import stat
from itertools import islice
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import Node
from ruamel.yaml.reader import ReaderError

from trialfleet import untrusted_files
from trialfleet.errors import InputError, StudyError, join_names

LARGEST_STUDY = 2_000_000  # bytes; enough for 10,000 regions with their own settings
DEEPEST = 32  # levels of tables and lists; a study has six
_MOST_LOOKED_AT, _LOOKED_AT = 200, 65_536  # files to search for studies, bytes of each
_SHOWN_STUDIES = 10
MOST_VALUES = 500_000  # values; for each alias, the values behind it count again

# Other errors that ruamel.yaml raises for an invalid text.
_PARSER_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file as ruamel.yaml's lists and tables, with line numbers.

    Only a regular file of at most `LARGEST_STUDY` bytes is read, because a pipe or device might
    never end.

    Raises:
        InputError: the file can't be read.
        StudyError: the text is not valid YAML, or uses a feature of YAML that studies may not use.
            The message names the line.
    """
    text = _read(path)
    yaml = YAML(typ="rt", pure=True)
    yaml.Composer = _Composer
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        what = str(error.problem or error.context)
        if isinstance(error, DuplicateKeyError):
            what = what.partition(" with value")[0] + " in one table"  # without a password
        fault = "unsupported YAML" if isinstance(error, _BeyondStudyError) else "not YAML"
        raise StudyError(f"{path}{line}: {fault}: {what}") from None
    except ReaderError as error:
        at = text.count("\n", 0, error.position) + 1
        what = f"the character {chr(error.character)!r} is not allowed"
        raise StudyError(f"{path}:{at}: not YAML: {what}") from None
    except (YAMLError, *_PARSER_FAULTS) as error:
        raise StudyError(f"{path}: not YAML: {error}") from None


def _read(path: Path) -> str:
    try:
        if kind := untrusted_files.KINDS.get(stat.S_IFMT(path.stat().st_mode)):
            raise InputError(f"{path} is {kind}; name a regular file{_studies_here()}")
        with path.open("rb") as file:
            content = file.read(LARGEST_STUDY + 1)
        if len(content) > LARGEST_STUDY:
            raise InputError(
                f"{path} is larger than {LARGEST_STUDY:,} bytes; for regions that differ only in "
                "their data, write regions: {glob: …}, or data with {region}"
            )
        return content.decode()
    except FileNotFoundError:
        raise InputError(f"{path}: the file does not exist{_studies_here()}") from None
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line, byte = content[: error.start].count(b"\n") + 1, content[error.start]
        raise InputError(
            f"{path}:{line}: byte {byte:#x} is not UTF-8; save the file as UTF-8"
        ) from None
    except ValueError as error:  # a path with a zero byte
        raise InputError(f"{path} can't be read: {error}") from None


def _studies_here() -> str:
    places = (place for pattern in ("*.y*ml", "*/*.y*ml") for place in sorted(Path().glob(pattern)))
    found = [str(place) for place in islice(places, _MOST_LOOKED_AT) if _looks_like_a_study(place)]
    return f"; studies here: {join_names(found, _SHOWN_STUDIES)}" if found else ""


def _looks_like_a_study(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return re.search(rb"(?m)^search_space:", file.read(_LOOKED_AT)) is not None
    except OSError:
        return False


class _BeyondStudyError(ComposerError):
    """The text has YAML that is not allowed in a study."""


class _Composer(Composer):
    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self._depth = 0
        self._values = 0
        self._behind: dict[int, int] = {}  # number of values in each node with an anchor

    def compose_node(self, parent: Node | None, index: Any) -> Node:
        event = self.parser.peek_event()
        if getattr(event, "tag", None) not in {None, "!"}:
            given = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            self._refuse(event, f"the tag {given!r}; write the value without a tag")
        if self._depth == DEEPEST:
            self._refuse(event, f"more than {DEEPEST} levels deep")
        if not isinstance(event, AliasEvent) and event.anchor in self.anchors:
            self._refuse(event, f"the anchor &{event.anchor} is defined twice")
        before = self._values
        self._depth += 1
        node: Node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, AliasEvent):
            self._values += 1
            if event.anchor:
                self._behind[id(node)] = self._values - before
        elif id(node) in self._behind:
            self._values += self._behind[id(node)]
        else:
            self._refuse(event, f"the alias *{event.anchor} is a part of itself")
        if self._values > MOST_VALUES:
            self._refuse(
                event, f"more than {MOST_VALUES:,} values, counting those that aliases repeat"
            )
        return node

    def _refuse(self, event: Any, what: str) -> None:
        raise _BeyondStudyError(problem=what, problem_mark=event.start_mark)
