"""A schedd that nobody can reach; a program of that name stands in for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import NoAddressError
from trialfleet.workflows.control.dagman.unreachable_schedd import NAME, UnreachableSchedd

ABSENT = NoAddressError("the schedd has no address")
Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / NAME)
    started: list[subprocess.Popen[bytes]] = []

    def start_one() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([program, "60"]))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait()


def test_an_unreachable_schedd_is_killed_at_the_second_check_in_a_row(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    monkeypatch.setattr(os, "getppid", lambda: own)  # as if both had one master
    unreachable, first = UnreachableSchedd(), start()
    for error in (ABSENT, None, ABSENT, PoolError("refused"), ABSENT):
        unreachable.check(error)
        assert first.poll() is None
    unreachable.check(ABSENT)
    assert first.wait(10) == -9
    second = start()
    unreachable.check(ABSENT)
    assert second.poll() is None


def test_a_schedd_of_another_master_is_left_alone(start: Start) -> None:
    unreachable, other = UnreachableSchedd(), start()
    unreachable.check(ABSENT)
    unreachable.check(ABSENT)
    assert other.poll() is None
