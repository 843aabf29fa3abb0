"""The site's pages in the order of its navigation, and docs/llms.txt, which lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGURATION = ROOT / "mkdocs.yml"
LLMS = DOCS / "llms.txt"


class Page(NamedTuple):
    """One entry of the navigation: its group's title, its own, and its file below docs/."""

    group: str
    title: str
    file: str

    @property
    def url(self) -> str:
        """The page's address on the site, relative to its root."""
        return self.file.removesuffix(".md") + ".html"

    @property
    def opening(self) -> str:
        """The first sentence below the page's heading.

        Raises:
            ValueError: no text comes before the first table, list, block or heading.
        """
        text = (DOCS / self.file).read_text(encoding="utf-8")
        found = re.search(r"\A# .+\n\n((?:(?!```|[#|]|<!--|- ).+\n)+)", text)
        if not found:
            raise ValueError(f"docs/{self.file}: begin with a heading and a sentence")
        sentence = re.match(r".*?\.(?= |$)", " ".join(found[1].split()))
        return _without_links(sentence[0] if sentence else found[1])


def pages() -> list[Page]:
    """Return the pages of the navigation, as mkdocs.yml has them."""
    nav = YAML(typ="safe").load(CONFIGURATION.read_text(encoding="utf-8"))["nav"]
    return list(_pages(nav, ""))


def _pages(entries: list[dict[str, object]], group: str) -> Iterator[Page]:
    for entry in entries:
        ((title, inside),) = entry.items()
        if isinstance(inside, list):
            yield from _pages(inside, title)
        else:
            yield Page(group, title, str(inside))


def llms_text() -> str:
    """Return docs/llms.txt: the project in a sentence, then each page with what it is about."""
    listed = pages()
    lines = ["# trialfleet", "", f"> {listed[0].opening}"]
    group = None
    for page in listed:
        if page.group != group:
            group = page.group
            lines += ["", f"## {group}", ""]
        lines.append(f"- [{page.title}]({page.url}): {page.opening}")
    return "\n".join(lines) + "\n"


def _without_links(text: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
