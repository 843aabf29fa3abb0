"""Shorter paths in the commands `trialfleet promote PATH` that records of runs contain.

A record names a model by its absolute path, because the record may be read in any folder. In the
current folder, a shorter name may be enough.
"""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from pathlib import Path

from trialfleet.errors import TrialfleetError
from trialfleet.files import shell_quoted
from trialfleet.workflows.facts.models.folders import read_provenance
from trialfleet.workflows.facts.runs.lookup import find_model

_PROMOTE = re.compile(r"(?<=trialfleet promote )('/(?:[^']|'\"'\"')*'|/[^\s;]+)")


def shorten_promote(text: str) -> str:
    """Return `text` with each PATH of a `trialfleet promote PATH` replaced by [STUDY/]RUN/REGION.

    A path stays if such a name would not mean the same model in the current folder.
    """
    return _PROMOTE.sub(lambda found: _short_path(found[0], str(Path.cwd())), text)


@lru_cache(maxsize=1024)  # a watch shows the same commands repeatedly
def _short_path(quoted: str, _here: str) -> str:
    model = Path(shlex.split(quoted)[0])
    origin = read_provenance(model)
    name = f"{model.name}/{origin.get('region', model.parent.name)}"
    for word in (name, f"{origin.get('study', model.parent.parent.name)}/{name}"):
        try:
            if find_model(word).resolve() == model.resolve():
                return shlex.quote(word)
        except (TrialfleetError, OSError):
            continue
    return shell_quoted(model)
