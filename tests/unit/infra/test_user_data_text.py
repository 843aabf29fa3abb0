"""The user data as text: Python that fits into what EC2 allows, and reads on old images."""

from __future__ import annotations

import base64
import gzip

from trialfleet.infra.fleet.nodes import user_data


def test_user_data_is_python_that_the_oldest_image_reads() -> None:
    script = user_data.render({"boot_minutes": 20, "fleet": 'it\'s "quoted" \\ and {{ braced }}'})
    compile(script, "user-data", "exec")
    assert script.startswith("#!/usr/bin/python3\n")


def test_packed_user_data_is_far_below_what_ec2_allows() -> None:
    script = user_data.render({"bundle": "b" * 200, "manager": "m" * 253, "run": "r" * 255})
    packed = base64.b64decode(user_data.pack(script))
    assert len(packed) < 16_384 / 2
    assert gzip.decompress(packed).decode() == script
    assert user_data.pack(script) == user_data.pack(script)  # a version of the template for each
