"""The trainer's process under a job's agent: resident trainers, and the limits of a trial."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import unkillable
from tests.unit.nodes.scripted_access_point import LEAVE, AccessPoint, serving, train
from trialfleet.nodes import trial
from trialfleet.nodes.job.trial_limits import FIRST_MEMORY_CHECK

pytestmark = pytest.mark.slow


@pytest.fixture
def point(tmp_path: Path) -> Iterator[AccessPoint]:
    with serving(tmp_path) as found:
        yield found


STAYS = """\
import json, os, socket, subprocess, sys, time
agent = socket.socket(fileno=int(os.environ["TRIALFLEET_STAYS"]))
while True:
    trial = json.load(open(os.environ["TRIALFLEET_TRIAL"]))
    print(os.getpid(), trial["node"], flush=True)
    exec(trial["params"].get("do", ""))
    agent.send(b'{"code": 0}')
    if not (word := agent.recv(65536)):
        sys.exit(0)
    word = json.loads(word)
    os.chdir(os.path.dirname(word["trial"]))
    os.environ["TRIALFLEET_TRIAL"] = word["trial"]
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(word[name], os.O_WRONLY | os.O_APPEND), number)
"""


WANDERS = """\
import os, trial

def main(t):
    os.chdir("/")
    t.report(3, loss=0.5)
    t.complete(loss=0.5)

os.chdir("/")
trial.run(main)
"""


def staying(point: AccessPoint, *do: str, **more: object) -> list[str]:
    """Run trials of a trainer that stays; return which process each had: a, b and so on."""
    (point.sandbox / "stays.py").write_text(STAYS)
    orders = [train(f"A.t{number}", **more) for number in range(len(do))]
    for order, what in zip(orders, do, strict=True):
        order["trial"]["params"]["do"] = what
    point.first(orders[0])
    point.answers = [*orders[1:], LEAVE]
    assert point.run(sys.executable, "stays.py") == 0
    outs = [point.left(f"A.t{number}")["out"].split() for number in range(len(do))]
    assert [out[1] for out in outs] == [f"A.t{number}" for number in range(len(do))]
    pids = [out[0] for out in outs]
    letters = {pid: letter for letter, pid in zip("abcdef", dict.fromkeys(pids), strict=False)}
    return [letters[pid] for pid in pids]


def test_a_resident_trainer_trains_several_trials(point: AccessPoint) -> None:
    burn = "until = time.process_time() + 0.3\nwhile time.process_time() < until: pass"
    assert staying(point, burn, "print('x', file=sys.stderr)", burn) == ["a", "a", "a"]
    assert [code for _, code in point.recorded()] == [0, 0, 0]
    assert [point.left(f"A.t{number}")["err"] for number in range(3)] == ["", "x\n", ""]
    seconds = [each["cpu_seconds"] for each in point.said if each["say"] == "ended"]
    assert seconds[1] < min(seconds[0], seconds[2]), "to each what it used"
    assert min(each["memory_mb"] for each in point.said if each["say"] == "ended") > 1


def test_a_trainer_that_changes_its_working_directory_finds_its_trial(point: AccessPoint) -> None:
    shutil.copy(trial.__file__, point.sandbox)
    (point.sandbox / "wanders.py").write_text(WANDERS)
    point.first(train("A.t0"))
    point.answers = [train("A.t1"), LEAVE]
    assert point.run(sys.executable, "wanders.py") == 0
    for name in ("A.t0", "A.t1"):
        assert '"loss": 0.5' in point.left(name)["result.json"], name
        assert '"step": 3' in point.left(name)["progress.jsonl"], name


def test_a_resident_trainer_that_ends_is_restarted(point: AccessPoint) -> None:
    ends = ["", "sys.exit(64)", "", "os.kill(os.getpid(), 9)", "sys.exit(0)", ""]
    assert staying(point, *ends) == ["a", "a", "b", "b", "c", "d"]
    assert [code for _, code in point.recorded()] == [0, 64, 0, -signal.SIGKILL, 0, 0]


def test_a_resident_trainer_that_dies_while_waiting_is_restarted(point: AccessPoint) -> None:
    dies = "import threading; threading.Timer(0.2, os._exit, [3]).start()"
    point.delay = 0.5
    assert staying(point, dies, "") == ["a", "b"]
    assert [code for _, code in point.recorded()] == [0, 0]


def test_a_resident_trainer_that_saves_is_restarted_in_the_same_folder(point: AccessPoint) -> None:
    saves = "if not os.path.exists('checkpoint/x'): open('checkpoint/x', 'w'); sys.exit(85)"
    (point.sandbox / "stays.py").write_text(STAYS)
    assert staying(point, "", saves, "") == ["a", "a", "b"]
    assert [each["say"] for each in point.said] == ["begun", "ended", "saved", "ended", "ended"]


@pytest.mark.parametrize(
    "leaks",
    [
        "subprocess.Popen(['sleep', '600'])",
        "subprocess.run('setsid sleep 600 & true', shell=True)",
        "os.fork() or time.sleep(600)",
    ],
)
def test_a_resident_trainer_whose_trial_leaves_processes_is_restarted(
    point: AccessPoint, leaks: str
) -> None:
    assert staying(point, leaks, "", "") == ["a", "b", "b"]
    assert [code for _, code in point.recorded()] == [0, 0, 0]


def test_a_resident_trainer_that_hangs_is_killed_at_its_time_limit(point: AccessPoint) -> None:
    assert staying(point, "", "time.sleep(600)", "", seconds=1) == ["a", "a", "b"]
    ends = [(each["code"], each["over"]) for each in point.said if each["say"] == "ended"]
    assert ends == [(0, None), (-signal.SIGKILL, "time"), (0, None)]


CLOSES = """\
import sys
from pathlib import Path
from trialfleet.nodes.job.process_tree import ProcessTree
from trialfleet.nodes.job.trainer_process import Trainer

processes = ProcessTree()
closes = 'eval "exec $TRIALFLEET_STAYS>&-"; sleep 600'
trainer = Trainer(["bash", "-c", closes], Path(sys.argv[1]), processes)
while trainer.socket:
    assert trainer.status() is None
processes.end()
print(trainer.status())
"""


STUCK = """\
import subprocess, sys, time
from trialfleet.nodes.job.process_tree import ProcessTree

processes = ProcessTree()
program = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
program.stdout.readline()
assert processes.wait_status(program.pid) is None
for _ in range(2):
    began = time.monotonic()
    processes.end()
    print(processes.wait_status(program.pid), time.monotonic() - began)
"""


@unkillable.needs_tracing
def test_a_trainer_that_survives_sigkill_counts_as_killed() -> None:
    """It hangs in a GPU's driver. It is waited for once, and not for ever."""
    words = [sys.executable, "-c", STUCK, unkillable.PROGRAM]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    (first, waited), (second, again) = (line.split() for line in ended.stdout.splitlines())
    assert first == second == str(int(signal.SIGKILL))
    assert float(again) < float(waited) < unkillable.SECONDS - 5.0


def test_a_trainer_that_closes_the_socket_is_killed(tmp_path: Path) -> None:
    """In a process of its own, as `end` kills all children: here they would be other tests'."""
    words = [sys.executable, "-c", CLOSES, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == f"{int(signal.SIGKILL)}\n", ended.stderr


def test_invalid_messages_of_a_trainer_are_ignored(point: AccessPoint) -> None:
    words = [b"x", b"[]", b'{"code": 3}', b"[" * 60_000, b"{}"]
    send = "\n".join(f"agent.send({word!r})" for word in words)
    assert staying(point, send, "") == ["a", "a"]


# -- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["itself", "a child"])
def test_a_trial_over_its_memory_is_ended(point: AccessPoint, where: str) -> None:
    takes = "import time; x = b'x' * (300 << 20); time.sleep(600)"
    words = [sys.executable, "-c", takes]
    point.first(train("A.t1", memory_mb=200))
    point.answers = [LEAVE]
    assert point.run(*words if where == "itself" else ("sh", "-c", '"$@"; true', "sh", *words)) == 0
    last = point.said[-1]
    assert (last["code"], last["over"]) == (-signal.SIGKILL, "memory")
    assert last["memory_mb"] > 200


def test_memory_that_processes_share_counts_once(point: AccessPoint) -> None:
    shares = """\
import os, time
x = b'x' * (150 << 20)
pids = [os.fork() or (time.sleep(1.2), os._exit(0)) for _ in range(3)]
for pid in pids: os.waitpid(pid, 0)
"""
    point.first(train("A.t1", last=True, memory_mb=400))
    assert point.run(sys.executable, "-c", shares) == 0
    assert 150 < point.said[-1]["memory_mb"] < 300


@pytest.mark.parametrize("seconds", [0, FIRST_MEMORY_CHECK + 0.2])
def test_a_resident_trainer_over_its_memory_is_restarted(
    point: AccessPoint, seconds: float
) -> None:
    keeps = f"time.sleep({seconds}); x = b'x' * (300 << 20)"
    assert staying(point, keeps, "", memory_mb=200) == ["a", "b"]


def test_a_trial_that_is_stopped_finds_the_order(point: AccessPoint) -> None:
    point.first(train("A.t1", last=True, grace_seconds=600))
    script = "echo > ready; while [ ! -s stop.json ]; do sleep 0.01; done; cat stop.json"
    with point.start("sh", "-c", script) as agent:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        point.wait_for(lambda: point.server.attributes.get("ChirpTrialfleetTrial") == '"A.t1"')
        (point.words / "stop.json").write_text('{"trial": "A.t0"}')
        (point.words / "stop.json").write_text('{"trial": "A.t1", "step": 3}')
        assert agent.wait(60) == 0
    assert point.left("A.t1")["out"] == '{"trial": "A.t1", "step": 3}'


def test_a_trial_that_ignores_the_order_to_stop_gets_sigterm(point: AccessPoint) -> None:
    point.first(train("A.t1", grace_seconds=0.1))
    point.answers = [train("A.t2", grace_seconds=0.1, last=True)]
    with point.start("sh", "-c", "case $PWD in *t1) echo > ready; sleep 600; esac") as agent:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        (point.words / "stop.json").write_text('{"trial": "A.t1"}')
        assert agent.wait(60) == 0
    assert point.recorded() == [("A.t1", -signal.SIGTERM), ("A.t2", 0)]


def test_a_trial_that_was_stopped_before_it_begins_is_not_trained(point: AccessPoint) -> None:
    point.first(train("A.t1", grace_seconds=60))
    point.answers = [train("A.t2", last=True, grace_seconds=60)]
    (point.words / "stop.json").write_text('{"trial": "A.t1"}')
    assert point.run("sh", "-c", "echo trained") == 0
    assert point.recorded() == [("A.t1", 0), ("A.t2", 0)]
    left = point.left("A.t1")
    assert json.loads(left["result.json"]) == {"schema": 1, "status": "stopped", "metrics": {}}
    assert (left["out"], point.left("A.t2")["out"]) == ("", "trained\n")


def test_a_trial_that_saves_when_stopped_is_not_restarted(point: AccessPoint) -> None:
    point.first(train("A.t1", last=True, grace_seconds=0.1))
    script = "trap 'exit 85' TERM; echo life >> lives; echo > ready; sleep 600 & wait"
    with point.start("sh", "-c", script) as agent:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        (point.words / "stop.json").write_text('{"trial": "A.t1"}')
        assert agent.wait(60) == 0
    assert json.loads(point.left("A.t1")["result.json"])["status"] == "stopped"
    assert (point.sandbox / "trials/A.t1/lives").read_text() == "life\n"
