"""The user data as text: Python that fits into what EC2 allows, and reads on old images."""

from __future__ import annotations

import ast

import pytest

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.nodes import user_data


def test_user_data_is_python_that_the_oldest_image_reads() -> None:
    script = user_data.render({"boot_minutes": 20, "fleet": 'it\'s "quoted" \\ and {{ braced }}'})
    compile(script, "user-data", "exec")
    assert script.startswith("#!/usr/bin/python3\n")
    assert len(script.encode()) <= 16_384


def test_user_data_that_ec2_would_refuse_is_refused_here() -> None:
    with pytest.raises(FleetError, match=r"has \d+ bytes, but EC2 allows 16384"):
        user_data.render({"run": "x" * 5_000})


def test_the_aws_client_in_the_user_data_differs_only_in_docstrings() -> None:
    ours = ast.parse(user_data.AWS_MODULE.read_text())
    for node in ast.walk(ours):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    lines = user_data.without_docstrings(user_data.AWS_MODULE.read_text())
    assert ast.dump(ast.parse(lines)) == ast.dump(ours)
