"""The user data of a fleet's instances: a Python script that fetches the bundle and starts it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialfleet.errors import FleetError
from trialfleet.infra.pool_config import templates

TEMPLATE = "user_data.py.j2"
LIMIT = 16_384  # bytes that EC2 takes
# Its text stands in the script: how to ask IMDS and S3 is written once.
AWS_MODULE = Path(__file__).parents[2] / "nodes" / "bootstrap" / "aws.py"


def render(settings: Mapping[str, Any]) -> str:
    """Return the script with these settings in it.

    Args:
        settings: what `nodes/bootstrap/settings.py` names; nothing of it may be secret.

    Raises:
        FleetError: the script is longer than EC2 takes.
    """
    text = (
        templates("node")
        .get_template(TEMPLATE)
        .render(
            aws=AWS_MODULE.read_text(encoding="utf-8").strip(),
            settings=repr(json.dumps(dict(settings), sort_keys=True)),
        )
    )
    size = len(text.encode())
    if size > LIMIT:
        raise FleetError(
            f"the user data has {size} bytes, EC2 takes {LIMIT}: "
            f"use shorter names (bucket, manager, run: {settings.get('run')!r})"
        )
    return text
