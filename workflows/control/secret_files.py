"""Secrets in files or environment variables that a study names, read again at each use."""

from __future__ import annotations

import os
import re
from pathlib import Path


def secret(file: str | None, variable: str | None = None) -> str:
    """Return the first non-blank line of a secret's file or environment variable.

    The environment variable is read only if `file` is None. ValueError if the secret can't be read
    or is empty. The message has no part of the secret.
    """
    try:
        text = Path(file).read_text(encoding="utf-8") if file else os.environ.get(variable or "")
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from None
    except UnicodeError:
        raise ValueError(f"{file} can't be read: it is not a text file") from None
    if found := re.split(r"[\r\n]", (text or "").strip(), maxsplit=1)[0].strip():
        return found
    if file:
        raise ValueError(f"{file} is empty")
    raise ValueError(f"the environment variable {variable} is empty or not set")
