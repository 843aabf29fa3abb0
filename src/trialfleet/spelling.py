"""Suggestions for a misspelt word.

This module is separate from `sections`, because pydantic is slow to import and commands without a
study need suggestions, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_LONGEST_GUESSED = 100  # characters of a word whose likes are looked for


def did_you_mean(
    word: str, choices: Iterable[str], other_words: Mapping[str, str] | None = None
) -> str:
    """Return ` (did you mean …?)` if a choice is similar to `word`, else an empty text.

    `other_words` are other names that people use for the choices.
    """
    known = (other_words or {}).get(word.lower()) or nearest(word, choices)
    return f" (did you mean {known!r}?)" if known else ""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is spelt most like `word`; None if no choice is similar."""
    near = difflib.get_close_matches(word[:_LONGEST_GUESSED], list(choices), n=1)
    return near[0] if near else None
