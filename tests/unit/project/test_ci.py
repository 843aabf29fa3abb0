"""Checks of `.ci/run` that need more than Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REAL = "tests/fleet/in_lab/test_lab_real.py"
MAIN_LOOP = {
    "test_a_bare_instance_boots_itself_into_the_pool",
    "test_a_node_that_joined_does_not_switch_itself_off",
    "test_jobs_cannot_ask_the_metadata_even_after_the_network_restarted",
    "test_a_node_that_reboots_comes_back_by_itself",
}


@pytest.mark.slow
def test_ci_includes_the_tests_that_boot_a_real_node() -> None:
    """With what makes Debian's image, and among the tests that `make test` chooses."""
    ci = (ROOT / ".ci" / "run").read_text()
    assert "command -v mmdebstrap" in ci
    assert ci.endswith('make "${1:-test}"\n')
    (chosen,) = re.findall(
        r"^test:.*\n.*pytest .* -m \"(.*)\"$", (ROOT / "Makefile").read_text(), re.M
    )
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", chosen, REAL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(re.findall(r"::(\w+)", done.stdout)) == MAIN_LOOP, done.stdout + done.stderr
