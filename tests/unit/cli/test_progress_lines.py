"""Progress of a command: one line on a terminal; elsewhere, new lines at changes and intervals."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from trialfleet.workflows.views import output

PROGRAM = """
from trialfleet.workflows.views.output import progress_lines
with progress_lines("  ") as progress:
    progress("waits for a slot")
    progress("runs on a\\x1b[2Jb")
print("done")
"""


def test_without_a_terminal_a_line_is_printed_on_change_and_periodically(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with output.progress_lines("  ", err=True) as progress:
        for second in range(20):
            now[0] = 100.0 + second
            progress(f"waits for {second + 1}" if second < 17 else "runs")
    said = "  0 s: waits for 1\n  15 s: waits for 16\n  17 s: runs\n"
    assert capsys.readouterr() == ("", said)


def test_a_terminal_shows_one_line_that_is_erased_at_the_end() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=theirs, env=environment)
    os.close(theirs)
    assert done.returncode == 0
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "  0 s: waits for a slot" in shown
    assert "\x1b[2Jb" not in shown, "what isn't ours moves no cursor"
    before_the_end = shown.rindex("\x1b[2K")  # the line is erased
    assert shown.index("runs on") < before_the_end < shown.index("done")
    assert "\n" not in shown[: shown.index("runs on")], "lines don't pile up"
