"""The code blocks of the pages, and the commands in those of the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.site import DOCS, ROOT

LANGUAGES = {"json", "python", "shell", "text", "yaml"}
_BLOCK = re.compile(
    r"^(?:<!-- not checked: (?P<excuse>.+) -->\n)?```(?P<language>.*)\n(?P<text>(?:.*\n)*?)```$",
    re.MULTILINE,
)
_SUBSTITUTION = re.compile(r"\$\(((?:[^()]|\([^()]*\))*)\)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
SUBSTITUTED = "SUBSTITUTED"  # stands for the output of a command in `$(…)`
_BETWEEN = {"&&", "||", "|", ";", "&"}


class Block(NamedTuple):
    """A fenced block: where it stands, its language and text, and why it isn't checked, if so."""

    page: Path
    line: int
    language: str
    text: str
    excuse: str | None

    @property
    def place(self) -> str:
        """PAGE:LINE, as a test's name."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every page that people read: the README, docs/, the examples' pages."""
    examples = sorted((ROOT / "workflows/examples").rglob("*.md"))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")), *examples]


def blocks(*languages: str, of: str | None = None) -> list[Block]:
    """Return the blocks that are to be checked, of these languages (or all), of one page or all."""
    chosen = [ROOT / of] if of else pages()
    found = (block for page in chosen for block in every_block(page))
    return [one for one in found if not one.excuse and (not languages or one.language in languages)]


def every_block(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, those that are not checked among them."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(page, line, found["language"], found["text"], found["excuse"])


def commands(script: str) -> list[list[str]]:
    """Return the words of each simple command of a shell script, in order.

    Comments, redirections, assignments and `sudo` are left out; what stands in `$(…)` is a command
    of its own. It reads what the pages hold: lists and pipes of commands, no loops or functions.
    """
    found = []
    joined = script.replace("\\\n", " ")
    for inner in _SUBSTITUTION.findall(joined):
        found += commands(inner)
    for line in _SUBSTITUTION.sub(SUBSTITUTED, joined).splitlines():
        found += _of_line(line)
    return found


def _of_line(line: str) -> Iterator[list[str]]:
    reader = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    reader.whitespace_split = True
    words: list[str] = []
    target = False  # the word after > or < is a file
    for word in [*reader, ";"]:
        if word in _BETWEEN:
            if words:
                yield words
            words = []
        elif set(word) <= {"<", ">"}:
            target = True
        elif target:
            target = False
        elif words or not (_ASSIGNMENT.fullmatch(word) or word == "sudo"):
            words.append(word)
