"""The user data of a fleet's instances: a Python script that fetches and starts the bundle."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialfleet import instance_aws
from trialfleet.errors import FleetError
from trialfleet.render import render_template

LIMIT = 16_384  # bytes, EC2's maximum
# The script contains this module's code for requests to IMDS and S3.
AWS_MODULE = Path(instance_aws.__file__)


def render(settings: Mapping[str, Any]) -> str:
    """Return the user data with `settings`, which must not contain a secret.

    `nodes/bootstrap/settings.py` defines the settings. FleetError if the user data is longer than
    EC2 allows.
    """
    text = render_template(
        "node/user_data.py.j2",
        aws=without_docstrings(AWS_MODULE.read_text(encoding="utf-8")).strip(),
        settings=repr(json.dumps(dict(settings), sort_keys=True)),
    )
    size = len(text.encode())
    if size > LIMIT:
        run = f" {settings['run']!r}" if settings.get("run") else ""
        raise FleetError(
            f"the nodes' user data has {size} bytes, but EC2 allows {LIMIT}: "
            f"use a shorter name for the bucket, for the manager or for the run{run}"
        )
    return text


def without_docstrings(source: str) -> str:
    """Return a module's source without docstrings, because EC2 limits user data to 16 KiB."""
    lines = source.splitlines(keepends=True)
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, owners) and ast.get_docstring(node) is not None:
            text = node.body[0]
            needed = " " * text.col_offset + "pass\n" if len(node.body) == 1 else ""
            blank = [""] * ((text.end_lineno or text.lineno) - text.lineno)
            lines[text.lineno - 1 : text.end_lineno] = [needed, *blank]
    return "".join(lines)
