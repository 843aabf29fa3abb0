"""`python -m tests.docs.pictures RUN`: takes the README's pictures of a run's page and report."""

from __future__ import annotations

import argparse
import base64
import tempfile
from pathlib import Path

from tests.docs.site import DOCS
from tests.unit.report.report_browser import Browser
from tests.unit.serve.page_server import serving
from trialfleet.files import write_atomic

SIZE = (1180, 900)
DRAWN = "return document.querySelector('.figure svg')"
MOST_BYTES = 150_000  # of a picture


def main() -> None:
    """Write docs/assets/run-page.png and report.png."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.pictures", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run that has ended")
    run: Path = parser.parse_args().run.resolve()
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        browser.resize(*SIZE)
        browser.prefer("light")
        browser.command("Emulation.setScrollbarsHidden", hidden=True)
        try:
            with serving(run.parent, str(run)) as server:
                browser.driver.get(server.url)
                browser.wait(DRAWN)
                _save(browser, "run-page.png")
            browser.driver.get((run / "report.html").as_uri())
            browser.wait(DRAWN)
            _save(browser, "report.png")
        finally:
            browser.driver.quit()


def _save(browser: Browser, name: str) -> None:
    """Write what the browser's window shows."""
    picture = base64.b64decode(browser.command("Page.captureScreenshot", format="png")["data"])
    assert len(picture) <= MOST_BYTES, f"{name} has {len(picture):,} bytes"
    write_atomic(DOCS / "assets" / name, picture)
    print(DOCS / "assets" / name, f"{len(picture):,} bytes")


if __name__ == "__main__":
    main()
