"""`python -m tests.docs`: writes the generated parts of docs/, or names the stale ones."""

from __future__ import annotations

import argparse
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from cogapp import Cog

from tests.docs.site import DOCS, LLMS, ROOT, llms_text
from trialfleet.files import write_atomic

MARKER = "[[[cog"


def fresh() -> dict[Path, str]:
    """Return what each file that is made from code, in part or whole, should hold.

    Raises:
        RuntimeError: a page's own code failed; the message names the page.
    """
    made = {page: _fresh_page(page) for page in sorted(DOCS.rglob("*.md")) if _is_made(page)}
    return made | {LLMS: llms_text()}


def stale() -> list[str]:
    """Return the files, relative to the repository, that are not what their code makes of them."""
    now = {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in fresh()}
    return [str(path.relative_to(ROOT)) for path, text in fresh().items() if now[path] != text]


def _is_made(page: Path) -> bool:
    return MARKER in page.read_text(encoding="utf-8")


def _fresh_page(page: Path) -> str:
    out, output = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(output):
        failed = Cog().main(["cog", "-I", str(ROOT), str(page)])
    if failed:
        raise RuntimeError(f"{page.relative_to(ROOT)}: {output.getvalue()}")
    return out.getvalue()


def main() -> int:
    """Do what the command line asks; 1 where something is stale and only `--check` was asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="Only name what is stale.")
    if parser.parse_args().check:
        for name in (found := stale()):
            print(f"{name} is stale: make docs-reference")
        return 1 if found else 0
    for path, text in fresh().items():
        write_atomic(path, text)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
