"""Switching a node off with the system's programs; stand-ins record the calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialfleet.nodes.bootstrap.host import StepError
from trialfleet.nodes.node_agent import machine

REFUSAL = "Call to PowerOff failed: Operation denied due to active block inhibitor"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of calls; `shutdown` is refused, as while apt installs packages."""
    noted = tmp_path / "calls"
    noted.touch()
    for name, then in {"shutdown": f"echo '{REFUSAL}' >&2; exit 1", "systemctl": "true"}.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {noted}\n{then}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return noted


def test_systemd_is_asked_directly_after_a_refused_shutdown(calls: Path) -> None:
    machine.power_off("the lease has expired")
    assert calls.read_text().splitlines() == [
        "shutdown -P now trialfleet: the lease has expired",
        "systemctl start --no-block poweroff.target",
    ]


def test_both_refusals_are_reported(calls: Path) -> None:
    (calls.parent / "systemctl").write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    with pytest.raises(StepError, match=r"block inhibitor.*no bus"):
        machine.power_off("the lease has expired")


def test_a_switch_that_is_not_cancelled_is_reported(calls: Path) -> None:
    with pytest.raises(StepError, match="block inhibitor"):
        machine.cancel_switch()
