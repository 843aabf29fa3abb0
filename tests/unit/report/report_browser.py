"""A real Chromium that opens reports, for the tests of their page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trialfleet.workflows.views.report.page import render_page
from trialfleet.workflows.views.report.report_types import Report


class Browser:
    """Chromium by its driver, with every request and console message on record."""

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver

        self.folder = folder
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--disable-quic", f"--user-data-dir={folder / 'profile'}",
        ):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(executable_path=str(shutil.which("chromedriver")))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.resize(1280, 900)

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def resize(self, width: int, height: int) -> None:
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height,
                     deviceScaleFactor=1, mobile=width < 600)  # fmt: skip

    def prefer(self, theme: str) -> None:
        self.command(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )

    def open(self, report: Report, fragment: str = "") -> None:
        file = self.folder / "report.html"
        file.write_text(render_page(report), encoding="utf-8")
        self.driver.get("about:blank")
        self.requests()
        self.complaints()
        self.driver.get(f"{file.as_uri()}{fragment}")
        self.wait("return document.documentElement.matches('.scripted')")
        # a phone's viewport is the page's own only once it has been drawn
        drawn = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        self.driver.execute_async_script(drawn)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(lambda _: self.run(script))

    def press(self, key: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(key).perform()

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return the log entries since the last call."""
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries

    def requests(self) -> list[str]:
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.log("browser")]

    def open_everything(self, which: str = "details") -> None:
        """Open what `which` selects, and see every picture that is in sight drawn."""
        for opened in (f"{which}:is(.region)", which):
            self.run("for (const each of document.querySelectorAll(arguments[0])) each.open = true",
                     opened)  # fmt: skip
            self.wait("return !document.querySelector('.region[open] .body:empty')")
        visible = "[...document.querySelectorAll('.figure')].filter(e => e.checkVisibility())"
        for at in range(self.run(f"return {visible}.length")):
            self.run(f"{visible}[arguments[0]].scrollIntoView()", at)
            self.wait(f"return {visible}[{at}].firstChild")

    def point(self, selector: str, across: float, down: float) -> None:
        """Move the pointer to a place in an element, from its upper left corner."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        box = self.run(
            "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector
        )
        self.command(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            x=round(box["left"] + across),
            y=round(box["top"] + down),
        )

    def texts(self, selector: str) -> list[str]:
        """Return the text of every element of a selector."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        found: list[str] = self.run(script, selector)
        return found
