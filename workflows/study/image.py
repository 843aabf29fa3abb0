"""The key `image:` of a study file, the container image in which trials run.

The normal form of an image is a reference to a registry (`docker://…`), or the absolute path of a
SIF file on the access point. HTCondor transfers a SIF file to the nodes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from trialfleet.sections import pattern_schema, refusal
from trialfleet.workflows.study.checks import SCHEME, check_transferable
from trialfleet.workflows.study.paths import Keys, Problem, UnusableStudyError, find_path

REGISTRY = "docker://"
SIF = ".sif"
_MAGIC = slice(32, 41), b"SIF_MAGIC"  # after the line that lets a shell run the file
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = rf"{_HOST}{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
_LONGEST = 400
_FORMS = "docker://REPOSITORY/NAME:TAG, or the path of a .sif file"


def _image(value: Any) -> str:
    if not isinstance(value, str):
        raise refusal(f"must be text: {_FORMS}")
    if value.endswith(SIF) and not SCHEME.match(value):
        return check_transferable(value)
    reference = value.removeprefix(REGISTRY)
    if len(reference) > _LONGEST or not re.fullmatch(_REFERENCE, reference, re.ASCII):
        raise refusal(f"must be {_FORMS}")
    return value


def is_sif(image: str) -> bool:
    """Return whether `image` is a SIF file, which HTCondor transfers to the nodes."""
    return image.endswith(SIF) and not image.startswith(REGISTRY)


def resolved_image(image: str, folder: Path) -> str:
    """Return the normal form of `image`. UnusableStudyError if its SIF file can't be used."""
    keys: Keys = ("image",)
    if not is_sif(image):
        return REGISTRY + image.removeprefix(REGISTRY)
    path = find_path(image, folder, keys)
    place, magic = _MAGIC
    try:
        with Path(path).open("rb") as file:
            is_right = file.read(place.stop)[place] == magic
    except OSError as error:  # for example a folder
        raise UnusableStudyError(Problem(keys, f"{path!r} can't be read: {error}")) from error
    if not is_right:
        text = f"{path!r} is not a SIF file; make one with: apptainer build NAME.sif …"
        raise UnusableStudyError(Problem(keys, text))
    return path


Image = Annotated[
    str, BeforeValidator(_image), pattern_schema(rf"(?:.*\{SIF}|(?:{REGISTRY})?{_REFERENCE})")
]
