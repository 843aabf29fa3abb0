"""Words that the project no longer uses, because they made readers guess."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
# Names of files, keys and values that users have, or that CHANGELOG.md explains.
ALLOWED = {
    "CHANGELOG.md": {"given up", "in force", "mends", "mending"},
    "docs/how-it-works.md": {"hand.lock"},
    "tests/pool/test_check.py": {"hand.lock"},
    "workflows/facts/run_folder/folder.py": {"hand.lock"},
}
# Each retired word in small letters, as a pattern for whole words, with the word that replaces it.
# Words that also have a plain meaning (hand, bound, told, former) are missing here.
RETIRED = {
    "mend(s|ed|ing|er)?": "repair",
    "witness[a-z]*": "source",
    "deaf[a-z]*": "unreachable",
    "knock[a-z]*": "probe",
    "in force": "current",
    r"hand\.lock": "run lock (the file keeps its name)",
    "believing": "fantasize",
    "vain(ly)?": "hopeless",
    "undone": "incomplete",
    "given up": "abandoned",
    "gives? up": "abandon",
    "so many": "number of",
    "l(ies?|ying) beside": "is next to",
    "stands? there": "is there",
    "stand(s|ing)? still": "stalled",
    "anew": "again",
    "is told": "is recorded, is reported, is stopped",
    "are told": "are recorded, are reported, are stopped",
    "was told": "was recorded, was reported, was stopped",
    "were told": "were recorded, were reported, were stopped",
    "heed[a-z]*": "check, follow",
    "forgiv[a-z]*": "reset",
    "reckon[a-z]*": "calculate",
    "as good as": "almost",
}
PATTERNS = {re.compile(rf"{word}(?![a-z])"): instead for word, instead in RETIRED.items()}


def retired_in(text: str) -> dict[str, str]:
    """Return the retired words of a text, each with what replaces it; names count word by word."""
    lowered = text.lower()
    return {
        match[0]: instead
        for pattern, instead in PATTERNS.items()
        for match in pattern.finditer(lowered)
        if begins_a_word(text, match.start())
    }


def begins_a_word(text: str, at: int) -> bool:
    """Return whether a word begins there: as in `a word`, `a_word` or `aWord`."""
    return at == 0 or not text[at - 1].isalpha() or (text[at - 1].islower() and text[at].isupper())


def holders() -> dict[str, dict[str, str]]:
    """Return the project's files that hold retired words, with those words."""
    kinds = [f"*.{kind}" for kind in ("py", "md", "j2", "html", "js")]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *kinds]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name and "/vendor/" not in name]
    texts = {path: path.read_text(encoding="utf-8") for path in paths if path.is_file()}
    del texts[Path(__file__)]
    found = {str(path.relative_to(ROOT)): retired_in(text) for path, text in texts.items()}
    return {name: found[name] for name in sorted(found) if found[name]}


@pytest.mark.slow
def test_retired_words_occur_only_in_names_that_users_have() -> None:
    assert {name: set(words) for name, words in holders().items()} == ALLOWED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("_Knock, RunWitnesses", {"knock": "probe", "witnesses": "source"}),
        ("the supervisor mends it", {"mends": "repair"}),
        ("is_vain, and Given Up", {"given up": "abandoned", "vain": "hopeless"}),
        ("recommended AMENDS, a default, enforced", {}),
    ],
)
def test_a_retired_word_is_found_with_its_replacement(text: str, expected: dict[str, str]) -> None:
    assert retired_in(text) == expected


def test_names_of_tests_begin_with_their_subject() -> None:
    """A name says what does what; a question or a relative clause has to be decoded."""
    vague = re.compile(r"def (test_(?:what|who|whoever|whatever|how|nothing|nobody)_\w+)")
    found = [name for path in TESTS.rglob("*.py") for name in vague.findall(path.read_text())]
    assert found == []
