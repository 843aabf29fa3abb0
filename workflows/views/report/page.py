"""The file report.html, which has the page, its data and its scripts, and loads no other file.

The data of the regions are compressed. The page's script makes the charts and tables of a region
when a reader opens the region.

Texts of a run come from users, trainers and machines, so the page treats them as unsafe. Templates
escape by default, JSON blocks contain no `<`, and charts insert text as text nodes. A content
security policy allows only the page's own two scripts (by their hashes) and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from trialfleet.render import render_template
from trialfleet.workflows.formatting import BETTER, usd
from trialfleet.workflows.views.report import (
    chart_data,
    days_matrix,
    groups,
    page_tables,
    page_texts,
)
from trialfleet.workflows.views.report.report_types import Report
from trialfleet.workflows.views.report.timeline import build_timeline

LIBRARIES = ("d3.min.js", "plot.umd.min.js")  # the second needs the first
SCRIPTS = ("shared.js", "region_charts.js", "trial_charts.js", "parameter_charts.js",
           "trials_table.js", "page.js")  # fmt: skip
_LEVEL = 6  # of compression: level 7 takes 50% more time, and saves less than 1% of the bytes


def render_page(report: Report) -> str:
    """Return the page as HTML text, which is always the same for the same report."""
    timeline = build_timeline(report)
    scripts = [libraries(), own_script(_folder() / "scripts" / "report.js")]
    overview = chart_data.overview_data(report)
    known = {
        "report": report, "views": page_texts, "tables": page_tables, "chart_data": chart_data,
        "overview": overview, "timeline": timeline, "days": days_matrix,
    }  # fmt: skip
    everywhere = {
        "names": [region.name for region in report.regions],
        "overview": overview,
        "timeline": chart_data.timeline_data(timeline),
        "days": render_template("report/matrix.html.j2", **known) if report.days else "",
    }
    points = chart_data.curve_points(report)
    regions = (
        chart_data.region_data(report, pictures, points)
        | {
            "html": render_template(
                "report/region.html.j2", region=pictures.region, pictures=pictures, at=at, **known
            )
        }
        for at, pictures in enumerate(map(chart_data.Pictures, report.regions))
    )
    return render_template(
        "report/page.html.j2",
        **known,
        better=BETTER,
        usd=usd,
        group_regions=groups.group_regions,
        outcome_tone=groups.outcome_tone,
        outcome=groups.outcome,
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own, nothing is in them
        policy=_security_policy(scripts),
        packed=_pack_blocks(chain([everywhere], regions)),
    )


def _pack_blocks(blocks: Iterable[Any]) -> str:
    """Return blocks of data as one compressed text in base64, which can't contain an HTML tag."""
    packing = zlib.compressobj(_LEVEL)
    parts = bytearray()
    for block in blocks:
        text = json.dumps(block, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        parts += packing.compress(f"{text}\n".encode())
    return base64.b64encode(bytes(parts + packing.flush())).decode()


def script_json(value: Any) -> Markup:
    """Return `value` as JSON for a `<script>` element.

    Characters that have a meaning in HTML are escaped, so that no text can end the element.
    """
    return htmlsafe_json_dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _security_policy(scripts: list[str]) -> str:
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    # each plot has its own style element, so styles can't be pinned by hash
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def libraries() -> str:
    """Return the code of Observable Plot and d3, with their licences as a comment at the top.

    The licences require that each copy contains them.
    """
    vendor = _folder() / "vendor"
    licenses = sorted(
        (file for file in vendor.iterdir() if file.name.endswith(".LICENSE")),
        key=lambda file: file.name,
    )
    notices = [f"{file.name}\n\n{file.read_text(encoding='utf-8').strip()}" for file in licenses]
    comment = "/*\n" + "\n\n".join(notices).replace("*/", "* /") + "\n*/"
    code = [(vendor / name).read_text(encoding="utf-8") for name in LIBRARIES]
    return _check_inline("\n".join([comment, *code]))


def own_script(last: Traversable) -> str:
    """Return the charts' code and the file `last` as one script that adds no global names."""
    parts = [_folder() / "scripts" / name for name in SCRIPTS]
    text = "\n".join(part.read_text(encoding="utf-8") for part in [*parts, last])
    return _check_inline(f'(async () => {{\n"use strict";\n{text}}})();\n')


def _check_inline(script: str) -> str:
    assert "\r" not in script, "the browser would change it before it takes its hash"
    assert "</script" not in script.lower(), "the script would end its own element"
    assert "<!--" not in script, "the browser would take what follows for another script element"
    return script


def _folder() -> Traversable:
    return files("trialfleet.templates") / "report"
