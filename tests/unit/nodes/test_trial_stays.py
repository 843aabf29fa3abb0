"""A resident trainer runs several trials in one process, each as in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.staying import Stay, make_folder
from trialfleet.nodes import trial

# The parameter `do` is a trial's code; the process describes itself in each result.
TRAINER = """
import gc, os, signal, sys, time
from pathlib import Path
import trial

trials = []

class Late:  # has something to write when it is let go of, and holds itself
    def __init__(self):
        self.itself = [self]

    def __del__(self):
        Path("late").write_text("written late")
        os.kill(os.getpid(), signal.SIGTERM)  # now that the trial is complete

def train(t):
    do = t.params["do"]
    trials.append(do)
    print("out of", do, flush=do == "flush")
    os.write(2, f"err of {do}\\n".encode())
    if do == "c":
        import ctypes
        ctypes.CDLL(None).puts(b"by C")
    if do == "restore":
        t.restore()
        Path("restored").touch()
        while not t.interrupted:
            time.sleep(0.001)
        t.yield_node()
    if do == "wait":
        Path("waits").touch()
        while True:
            time.sleep(0.001)
    if do == "close":
        sys.stdout.flush()
        os.close(1)
    if do == "restored":
        t.restore()
    if do == "stop":
        t.stop(loss=1)
    if do == "reject":
        t.reject("too wide")
    if do == "raise":
        raise ValueError("no such thing")
    if do == "exit":
        sys.exit(t.params["code"])
    if do == "return":
        return
    if do == "cycle":
        gc.disable()  # so that it isn't by chance
        Late().itself.append(None)
    t.stays = do != "leave"
    stays = "TRIALFLEET_STAYS" in os.environ
    t.report(1, loss=len(trials))
    t.complete(loss=len(trials), pid=os.getpid(), stays=stays)

trial.run(train)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str | Path]:
    path = tmp_path / "train.py"
    path.write_text(TRAINER)
    return [sys.executable, path]


@pytest.fixture(autouse=True)
def _helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(trial.__file__).parent))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def folder(tmp_path: Path, name: str, do: str, **params: Any) -> Path:
    """Return a trial's folder as the agent sets it up."""
    made = make_folder(tmp_path / name)
    (made / "trial.json").write_text(json.dumps({"params": {"do": do, **params}}))
    return made


def result(trained: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((trained / "result.json").read_text())
    return found


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)


def test_one_process_trains_one_trial_after_another(
    program: list[str | Path], tmp_path: Path
) -> None:
    trials = [folder(tmp_path, f"t{i} ü", "complete") for i in range(3)]
    stay = Stay(program, trials[0])
    for i, trained in enumerate(trials):
        if i:
            stay.give(trained)
        assert stay.read_end() == {"code": 0}
        assert (trained / "out").read_text() == "out of complete\n"
        assert (trained / "err").read_text() == "err of complete\n"
        assert len((trained / "progress.jsonl").read_text().splitlines()) == 1
    assert stay.leave() == 0
    found = [result(trained)["metrics"] for trained in trials]
    assert [each["loss"] for each in found] == [1, 2, 3]
    assert {each["pid"] for each in found} == {stay.process.pid}
    assert {each["stays"] for each in found} == {0}  # its children are not taken for it


def test_a_trainer_without_an_agent_trains_its_one_trial(
    program: list[str | Path], tmp_path: Path
) -> None:
    one = folder(tmp_path, "one", "complete")
    assert subprocess.run(program, cwd=one, stdout=subprocess.DEVNULL).returncode == 0
    assert result(one)["metrics"]["loss"] == 1


@pytest.mark.parametrize(
    ("do", "code"), [("reject", 64), ("raise", 1), ("return", 0), ("exit", 85), ("exit", 0)]
)
def test_a_trial_that_does_not_complete_ends_the_process(
    program: list[str | Path], tmp_path: Path, do: str, code: int
) -> None:
    first, second, alone = (
        folder(tmp_path, name, act, code=code)
        for name, act in [("first", "stop"), ("second", do), ("alone", do)]
    )
    stay = Stay(program, first)
    assert stay.read_end() == {"code": 0}
    assert result(first)["status"] == "stopped"
    stay.give(second)
    assert stay.ended() == code
    by_hand = subprocess.run(program, cwd=alone, capture_output=True, text=True)
    assert by_hand.returncode == code
    assert (second / "out").read_text() == by_hand.stdout
    assert (second / "err").read_text() == by_hand.stderr
    assert (second / "result.json").stat().st_size == 0 or do == "reject"


def test_a_trial_may_be_the_last_of_its_process(program: list[str | Path], tmp_path: Path) -> None:
    stay = Stay(program, one := folder(tmp_path, "one", "leave"))
    assert stay.ended() == 0
    assert result(one)["status"] == "complete"


@pytest.mark.parametrize("do", ["flush", "c"])
def test_printed_output_stays_with_its_trial(
    program: list[str | Path], tmp_path: Path, do: str
) -> None:
    first, second = folder(tmp_path, "first", do), folder(tmp_path, "second", "complete")
    stay = Stay(program, first)
    assert stay.read_end() == {"code": 0}
    printed = (first / "out").read_text()
    assert f"out of {do}\n" in printed
    assert ("by C\n" in printed) is (do == "c")
    stay.give(second)
    stay.read_end()
    stay.leave()
    assert (first / "out").read_text() == printed
    assert (second / "out").read_text() == "out of complete\n"


def test_a_trial_that_closes_its_output_leaves_the_next_one_its_own(
    program: list[str | Path], tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first", "close"), folder(tmp_path, "second", "c")
    stay = Stay(program, first)
    assert stay.read_end() == {"code": 0}
    stay.give(second)
    stay.read_end()
    stay.leave()
    assert "by C\n" in (second / "out").read_text()


def test_a_trials_objects_are_freed_before_the_agent_learns_of_its_end(
    program: list[str | Path], tmp_path: Path
) -> None:
    stay = Stay(program, one := folder(tmp_path, "one", "cycle"))
    assert stay.read_end() == {"code": 0}
    assert (one / "late").read_text() == "written late"
    assert stay.leave() == 0  # it did not die of a signal that came before its report


def test_a_trials_seconds_exclude_the_wait_before_it(
    program: list[str | Path], tmp_path: Path
) -> None:
    first, second = (folder(tmp_path, name, "complete") for name in ("first", "second"))
    stay = Stay(program, first)
    stay.read_end()
    given = time.monotonic()
    while time.monotonic() < given + 0.5:  # meanwhile it has nothing to train
        time.sleep(0.01)
    given = time.monotonic()
    stay.give(second)
    stay.read_end()
    assert 0 <= result(second)["seconds"] <= time.monotonic() - given + 0.001
    stay.leave()


def test_sigterm_interrupts_a_later_trial_as_it_does_the_first(
    program: list[str | Path], tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first", "restored"), folder(tmp_path, "second", "restore")
    stay = Stay(program, first)
    stay.read_end()
    stay.give(second)
    wait_for(second / "restored")
    stay.process.terminate()
    assert stay.ended() == 85


def test_sigterm_ends_a_later_trial_that_did_not_restore(
    program: list[str | Path], tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first", "restored"), folder(tmp_path, "second", "wait")
    stay = Stay(program, first)
    stay.read_end()
    stay.give(second)
    wait_for(second / "waits")
    stay.process.terminate()
    assert stay.ended() == -signal.SIGTERM


def test_sigterm_between_two_trials_ends_the_process(
    program: list[str | Path], tmp_path: Path
) -> None:
    stay = Stay(program, folder(tmp_path, "first", "restored"))
    stay.read_end()
    while stay.process.poll() is None:  # it may be telling still, and ignores it then
        stay.process.terminate()
        time.sleep(0.001)
    assert stay.ended() == -signal.SIGTERM


def test_a_trainer_exits_with_0_when_the_agent_closes_the_socket(
    program: list[str | Path], tmp_path: Path
) -> None:
    for name in ("before", "after"):  # the trainer's report
        stay = Stay(program, one := folder(tmp_path, name, "complete"))
        if name == "after":
            stay.agent.recv(1, socket.MSG_PEEK)
        assert stay.leave() == 0
        assert result(one)["status"] == "complete"
        assert (one / "err").read_text() == "err of complete\n"


def test_a_trainer_under_another_program_does_not_stay(
    program: list[str | Path], tmp_path: Path
) -> None:
    """The shell has something to do after each trial."""
    one = folder(tmp_path, "one", "complete")
    (tmp_path / "train.sh").write_text('"$@"\necho $? > after\n')
    stay = Stay(["sh", tmp_path / "train.sh", *program], one)
    assert stay.ended() == 0
    assert (one / "after").read_text() == "0\n"


@pytest.mark.parametrize("number", ["", "no number", "-1", "77", "0"])
def test_a_number_of_another_file_descriptor_is_ignored(
    program: list[str | Path], tmp_path: Path, number: str
) -> None:
    one = folder(tmp_path, "one", "complete")
    environment = {**os.environ, "TRIALFLEET_STAYS": number}
    done = subprocess.run(program, cwd=one, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "err of complete\n")
    assert result(one)["metrics"]["loss"] == 1


def test_the_trainers_own_socket_stays_open(tmp_path: Path) -> None:
    one = folder(tmp_path, "one", "complete")
    program = """
import os, socket, trial
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.environ["TRIALFLEET_STAYS"] = str(there.fileno())
trial.run(lambda t: t.complete(sent=there.send(b"abc")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=one, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert result(one)["metrics"] == {"sent": 3}
