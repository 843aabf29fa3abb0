"""What a trainer that failed said last, and what mends the commonest of it."""

from __future__ import annotations

import re
from pathlib import Path

from trialfleet import job_files
from trialfleet.workflows.missing_modules import how_to_install
from trialfleet.workflows.study.spec import Study

_LINES = 12  # of standard error, in an error's text
_LAST_BYTES = 1 << 20  # of standard error that are looked at
_FRAME = re.compile(r'  File "(?P<file>.+)", line \d+')
_OF_OTHERS = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|^<")


def last_words(error_file: Path) -> str:
    """Return the last lines of standard error; empty where there is none.

    Where a library's frames fill them, the last frame of the trainer's own code stands before them.
    """
    lines = _lines(error_file)
    shown = lines[-_LINES:]
    frames = [(at, found["file"]) for at, line in enumerate(lines) if (found := _FRAME.match(line))]
    own = [at for at, file in frames if not _OF_OTHERS.search(file)]
    if own and own[-1] < len(lines) - _LINES:
        begin = own[-1]
        end = next((at for at, _ in frames if at > begin), begin)
        shown = [*lines[begin : min(end, begin + 2)], "  …", *lines[3 - _LINES :]]
    return "\n".join(f"  {line}" for line in shown)


def missing_module(error_file: Path, study: Study) -> str:
    """Return what to do about a module that the trainer's Python doesn't have; empty: nothing."""
    return how_to_install("\n".join(_lines(error_file)[-_LINES:]), study)


def _lines(file: Path) -> list[str]:
    return job_files.tail(file, _LAST_BYTES)[0].decode(errors="replace").splitlines()
