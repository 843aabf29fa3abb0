"""The user data of a fleet's instances: a Python script that fetches and starts the bundle."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialfleet import instance_aws
from trialfleet.render import render_template

# The script contains this module's code for requests to IMDS and S3.
AWS_MODULE = Path(instance_aws.__file__)


def render(settings: Mapping[str, Any]) -> str:
    """Return the user data with `settings`, which must not contain a secret.

    `nodes/bootstrap/settings.py` defines the settings.
    """
    return render_template(
        "node/user_data.py.j2",
        aws=AWS_MODULE.read_text(encoding="utf-8").strip(),
        settings=repr(json.dumps(dict(settings), sort_keys=True)),
    )


def pack(text: str) -> str:
    """Return user data as gzip in base64. cloud-init unpacks it.

    EC2 allows 16 KiB before base64: more than twice the packed length.
    """
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
