"""Suggestions for a misspelt word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_LONGEST_GUESSED = 100  # characters of a word that are compared


def did_you_mean(
    word: str, choices: Iterable[str], other_words: Mapping[str, str] | None = None
) -> str:
    """Return ` (did you mean …?)` with the choice most like `word`, or "" if none is similar.

    `other_words` maps synonyms in lower case to choices. For a synonym, its choice is suggested.
    """
    known = (other_words or {}).get(word.lower()) or nearest_choice(word, choices)
    return f" (did you mean {known!r}?)" if known else ""


def nearest_choice(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is spelt most like `word`, or None if no choice is similar."""
    near = difflib.get_close_matches(word[:_LONGEST_GUESSED], list(choices), n=1)
    return near[0] if near else None
