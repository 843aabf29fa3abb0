"""A clock that is set back is noticed, even by a supervisor that was restarted meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from trialfleet.errors import PoolError
from trialfleet.workflows.control.dagman import clock_set_back
from trialfleet.workflows.control.dagman.clock_set_back import ClockWatch

NOW, TICK = 1_800_000_000.0, 5_000.0
COMMANDS = [["restart", "schedd"], ["restart", "negotiator"], ["reconfig"]]


class HTCondor:
    """A stand-in for HTCondor that records commands, and of whose daemons some are away."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = file
        monkeypatch.setattr(clock_set_back, "_commands_here", lambda: [*COMMANDS])
        monkeypatch.setattr(clock_set_back, "_run", self._run)
        self.commands: list[str] = []
        self.away: set[str] = set()

    def watch(self) -> ClockWatch:
        """Return a new supervisor's watch."""
        return ClockWatch(self.file)

    def _run(self, command: Sequence[str]) -> None:
        if command[-1] in self.away:
            raise PoolError(f"{command[-1]} is away")
        self.commands.append(command[-1])


ALL = ["schedd", "negotiator", "reconfig"]


@pytest.fixture
def htcondor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HTCondor:
    here = HTCondor(tmp_path / "clock.json", monkeypatch)
    here.watch().check(NOW, TICK)
    assert here.commands == []  # its earlier setting is unknown
    return here


@pytest.mark.parametrize(
    ("moved", "commands"),
    [(0, []), (-5, []), (-20, ALL), (-3600, ALL), (3600, []), (0.3, [])],
)
def test_only_a_clock_that_was_set_back_is_noticed(
    htcondor: HTCondor, moved: float, commands: list[str]
) -> None:
    htcondor.watch().check(NOW + 60 + moved, TICK + 60)
    assert htcondor.commands == commands


def test_a_clock_that_is_corrected_counts_as_set_back_once(htcondor: HTCondor) -> None:
    watch = htcondor.watch()
    watch.check(NOW + 3600, TICK)
    for seconds in range(30, 60, 5):
        watch.check(NOW + seconds, TICK + seconds)
    htcondor.watch().check(NOW + 60, TICK + 60)
    assert htcondor.commands == ALL


def test_a_reboot_does_not_count_as_a_set_clock(htcondor: HTCondor) -> None:
    htcondor.watch().check(NOW - 9000, 10.0)
    assert htcondor.commands == []


@pytest.mark.parametrize("content", ["", "[", "[1]", "{}", "[1, null]", '["x", 2]'])
def test_a_truncated_note_is_ignored(htcondor: HTCondor, content: str) -> None:
    htcondor.file.write_text(content)
    watch = htcondor.watch()
    watch.check(NOW - 9000, TICK + 1)
    assert htcondor.commands == []
    watch.check(NOW - 9900, TICK + 2)
    assert htcondor.commands == ALL


def test_the_watch_remembers_a_note_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    htcondor = HTCondor(tmp_path / "missing" / "clock.json", monkeypatch)
    watch = htcondor.watch()
    watch.check(NOW, TICK)
    watch.check(NOW - 100, TICK)
    assert htcondor.commands == ALL


def test_only_the_daemons_that_were_away_get_the_command_again(htcondor: HTCondor) -> None:
    watch = htcondor.watch()
    htcondor.away = {"negotiator"}
    for seconds in (0, 5, 10):
        watch.check(NOW - 600 + seconds, TICK + seconds)
    assert htcondor.commands == ["schedd", "reconfig"]
    htcondor.away.clear()
    for seconds in (15, 20):
        watch.check(NOW - 600 + seconds, TICK + seconds)
    assert htcondor.commands == ["schedd", "reconfig", "negotiator"]


def test_daemons_get_no_command_once_they_would_recover_by_themselves(htcondor: HTCondor) -> None:
    watch = htcondor.watch()
    htcondor.away = set(ALL)
    for seconds in range(0, 700, 5):
        watch.check(NOW - 600 + seconds, TICK + seconds)
    htcondor.away.clear()
    watch.check(NOW + 100, TICK + 700)
    assert htcondor.commands == []
