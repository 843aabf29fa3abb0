"""report.html: one file that asks the network for nothing.

Safe against every text of a run, which comes from users, trainers and machines: templates escape
by default, JSON blocks hold no `<`, pictures' texts are escaped for plotly, and a content security
policy lets no script run but the page's own two (by their hashes) and no request leave.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from trialfleet.workflows.report import figures, views
from trialfleet.workflows.report.model import Region, Report


def render_page(report: Report) -> str:
    """The whole page. The same report gives the same text."""
    environment = _environment()
    scripts = [_plotly(), environment.get_template("page.js.j2").render()]
    overview = figures.overview(report)
    return environment.get_template("page.html.j2").render(
        report=report,
        views=views,
        overview=overview,
        slices=figures.slices,
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own, nothing is in them
        policy=_policy(scripts),
        overview_json=script_json({"hover": {}, "figures": {"overview": overview}}),
        region_json=_region_json,
    )


def script_json(value: Any) -> Markup:
    """`value` as JSON for a `<script type="application/json">`: no text can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - what could be markup was just escaped


def _region_json(region: Region) -> Markup:
    return script_json({"hover": figures.hovers(region), "figures": figures.region_figures(region)})


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    # plotly places its own style elements, so styles can't be pinned by hash
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    script = script.replace("\r\n", "\n")  # as the browser does before it takes the hash
    assert "</script" not in script.lower(), "plotly.js would end its own element"
    return script


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("trialfleet.templates", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
