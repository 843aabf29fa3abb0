"""A job's agent, as its access point and its trainer see it, with a stand-in for chirp."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.unit.nodes.scripted_access_point import LEAVE, AccessPoint, serving, train
from trialfleet.nodes import trial
from trialfleet.nodes.job import archive, messages
from trialfleet.nodes.job.chirp import Chirp

pytestmark = pytest.mark.slow


@pytest.fixture
def point(tmp_path: Path) -> Iterator[AccessPoint]:
    with serving(tmp_path) as found:
        yield found


def sleeping(word: str) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if process.info["cmdline"] == ["sleep", word]]


def said(point: AccessPoint) -> list[str]:
    return [f"{each['say']} {each.get('trial')}" for each in point.said]


def error_of(agent: subprocess.Popen[str]) -> str:
    assert agent.stderr is not None
    return agent.stderr.readline()


# -- one trial after another ---------------------------------------------------------------------


def test_each_trial_of_a_job_has_its_own_folder(point: AccessPoint) -> None:
    (point.sandbox / "data.csv").write_text("rows")
    (point.sandbox / "code").mkdir()
    (point.sandbox / "code/of_ours.py").write_text("")
    point.first(train("A.t1"))
    point.answers = [train("A.t2", left=["model"]), train("A.t3", last=True)]
    script = """
        echo "$(cat data.csv) $(ls code) $(ls)"; echo err >&2
        echo '{}' > result.json; echo 1 >> progress.jsonl; echo m > model/m; touch stays-here
    """
    assert point.run("sh", "-c", script) == 0
    assert said(point) == ["begun A.t1", "ended A.t1", "ended A.t2", "ended A.t3"]
    assert [each["turn"] for each in point.said] == [0, 1, 2, 3]
    assert {each["job"] for each in point.said} == {"12.0"}
    for name in ("A.t1", "A.t2", "A.t3"):
        left = point.left(name)
        ended = json.loads(left.pop("ended.json"))
        assert ended.keys() == {"code", "seconds", "cpu_seconds", "memory_mb", "over"}
        assert [said for said in point.said if said.items() >= {"trial": name, **ended}.items()]
        own = "checkpoint code data.csv err model out progress.jsonl result.json stop.json"
        assert left.pop("out").split() == ["rows", "of_ours.py", *own.split(), "trial.json"]
        assert left.pop("model/m", "no model") == ("m\n" if name == "A.t2" else "no model")
        assert left == {"err": "err\n", "result.json": "{}\n", "progress.jsonl": "1\n"}


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 64", 64),
        ("kill -SEGV $$", -signal.SIGSEGV),
        ("kill -KILL $$", -signal.SIGKILL),
        ("exec nothing-of-that-name", 127),
        ("exec ./trial.json", 126),
    ],
)
def test_a_job_ends_as_its_last_trial_did(point: AccessPoint, script: str, code: int) -> None:
    point.first(train("A.t1"))
    point.answers = [train("A.t2", last=True)]
    assert point.run("sh", "-c", f"echo out; {script}") == code
    assert point.recorded() == [("A.t1", code), ("A.t2", code)]
    assert point.left("A.t2")["out"] == "out\n"
    assert not (point.sandbox / ".chirp.config").exists()


def test_a_trials_inputs_are_in_its_folder(point: AccessPoint) -> None:
    (point.sandbox / "weights").write_text("w")
    with tarfile.open(point.words / "gate.given.tar", "w", format=tarfile.GNU_FORMAT) as given:
        given.add(point.sandbox / "weights", "champion/weights")
    point.first(train("A.t1"))
    point.answers = [train("gate", given=True, last=True)]
    assert point.run("sh", "-c", "ls champion/weights; true") == 0
    assert point.left("A.t1")["out"] == ""
    assert point.left("gate")["out"] == "champion/weights\n"


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"no package" * 1000, "is damaged: "), (None, "is missing")],
    ids=["damaged", "missing"],
)
def test_a_trial_fails_if_its_inputs_cannot_be_unpacked(
    point: AccessPoint, content: bytes | None, fault: str
) -> None:
    if content:
        (point.words / "gate.given.tar").write_bytes(content)
    point.first(train("A.t1"))
    point.answers = [train("gate", given=True), LEAVE]
    assert point.run("sh", "-c", "echo trained") == 0
    assert point.recorded() == [("A.t1", 0), ("gate", 1)]
    left = point.left("gate")
    assert left.get("out", "") == ""
    assert left["err"].startswith(f"the package gate.given.tar {fault}")


def test_a_trial_that_is_ordered_again_begins_in_an_empty_folder(point: AccessPoint) -> None:
    point.first(train("A.t1"))
    point.answers = [train("A.t1", last=True)]
    assert point.run("sh", "-c", "[ ! -e former ] && echo > former") == 0
    assert point.recorded() == [("A.t1", 0), ("A.t1", 0)]


def test_an_agent_without_an_order_asks_for_one_and_leaves_when_ordered(
    point: AccessPoint,
) -> None:
    point.delay = 0.2
    point.order(token="another's", turn=1, **train("A.t9"))
    point.answers = [train("A.t1"), {**LEAVE, "code": 4}]
    assert point.run("true") == 4
    assert said(point) == ["ask None", "ended A.t1"]
    assert "nothing is left" in point.out


def test_background_processes_are_killed_before_the_next_trial_begins(point: AccessPoint) -> None:
    point.first(train("A.t1"))
    point.answers = [train("A.t2", last=True)]
    found = "ps -A -o args= | grep -cx 'sleep 8731'"
    script = f"{found}; (setsid sleep 8731 &) ; sleep 8731 & true"
    assert point.run("sh", "-c", script) == 0
    assert (point.left("A.t1")["out"], point.left("A.t2")["out"]) == ("0\n", "0\n")
    assert not sleeping("8731")


def test_a_trial_that_changes_shared_files_is_the_last_in_its_job(point: AccessPoint) -> None:
    (point.sandbox / "data").mkdir()
    (point.sandbox / "data/rows.csv").write_text("rows")
    point.first(train("A.t1"))
    point.answers = [train("A.t2"), LEAVE]
    script = "case $PWD in *t2) echo more >> data/rows.csv;; *) touch data/new;; esac"
    assert point.run("sh", "-c", script) == 0
    assert [each["wants"] for each in point.said if each["say"] == "ended"] == [True, False]
    assert "A.t2 has changed" in point.out


def test_a_job_whose_time_is_up_wants_no_other_trial(point: AccessPoint) -> None:
    point.first(train("A.t1"))
    point.answers = [LEAVE]
    assert point.run("true", TRIALFLEET_JOB_SECONDS="0.001") == 0
    assert point.said[-1]["wants"] is False


@pytest.mark.parametrize("python", ["3.10", "3.13"])
def test_other_pythons_run_the_agent(point: AccessPoint, python: str) -> None:
    found = [*Path("~/.pyenv/versions").expanduser().glob(f"{python}.*/bin/python3")]
    if not found:
        pytest.skip(f"no Python {python} here")
    point.first(train("A.t1", last=True))
    point.python = str(found[0])
    assert point.run("sh", "-c", "exit 3") == 3, point.err


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    for name in "ab":
        archive.build(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_agent_refuses_to_run_outside_a_job(tmp_path: Path) -> None:
    archive.build(tmp_path / "agent.pyz")
    variables = {n: v for n, v in os.environ.items() if n != "_CONDOR_CHIRP_CONFIG"}
    command = [sys.executable, "-I", "-S", "agent.pyz", "--", "touch", "trained"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 1
    assert "the agent can't use chirp: $_CONDOR_CHIRP_CONFIG is not set" in done.stderr
    assert not (tmp_path / "trained").exists()


# -- checkpoints ---------------------------------------------------------------------------------

SAVES = """
    echo life >> lives; cp data.csv checkpoint/ 2> /dev/null; echo 1 >> progress.jsonl
    [ $(wc -l < lives) = 1 ] && exit 85
    cat lives
"""


def test_after_a_checkpoint_the_command_starts_again_in_the_same_folder(
    point: AccessPoint,
) -> None:
    (point.sandbox / "data.csv").write_text("rows")
    point.first(train("A.t1", last=True))
    assert point.run("sh", "-c", SAVES) == 0
    assert said(point) == ["begun A.t1", "saved A.t1", "ended A.t1"]
    assert point.left("A.t1", "checkpoint") == {
        "checkpoint/data.csv": "rows",
        "progress.jsonl": "1\n",
        "out": "",
        "err": "",
    }
    assert point.left("A.t1")["out"] == "life\nlife\n"


@pytest.mark.parametrize("saves", ["true", "[ -s checkpoint/step ] || echo 7 > checkpoint/step"])
def test_a_trainer_that_exits_with_85_without_a_new_checkpoint_has_failed(
    point: AccessPoint, saves: str
) -> None:
    point.first(train("A.t1", last=True))
    script = f"echo life; {saves}; echo life >> lives; [ $(wc -l < lives) = 4 ] || exit 85"
    assert point.run("sh", "-c", script) == 1
    left = point.left("A.t1")
    assert left["out"] == ("life\n" if saves == "true" else "life\nlife\n")
    assert left["err"].endswith(
        "the trainer exited with 85, but saved no new checkpoint: no file of checkpoint/ changed\n"
    )


def test_a_trial_continues_from_its_checkpoint_on_another_machine(
    point: AccessPoint, tmp_path: Path
) -> None:
    point.first(train("A.t1"))
    trap = "trap 'echo 7 > checkpoint/step; exit 85' TERM; echo ready > ready; sleep 8732 & wait"
    script = f"echo life; cat checkpoint/step && exit; {trap}"
    with point.start("sh", "-c", script) as agent:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 85
    assert said(point) == ["begun A.t1", "saved A.t1"]
    assert (point.sandbox / ".chirp.config").exists(), "HTCondor may start it again here"
    assert not sleeping("8732")
    point.move(tmp_path / "elsewhere")
    point.answers = [LEAVE]
    assert point.run("sh", "-c", script) == 0
    assert point.left("A.t1")["out"] == "life\nlife\n7\n"


def test_an_agent_leaves_although_its_checkpoint_cannot_be_sent(point: AccessPoint) -> None:
    point.first(train("A.t1"))
    with point.start("sh", "-c", "trap 'exit 85' TERM; echo > ready; sleep 600 & wait") as agent:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        shutil.rmtree(point.words)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(30) == 85


def test_a_damaged_checkpoint_is_ignored(point: AccessPoint) -> None:
    (point.words / "A.t1.checkpoint.tar").write_bytes(b"no package" * 1000)
    point.first(train("A.t1", last=True))
    assert point.run("sh", "-c", "ls checkpoint") == 0
    assert point.left("A.t1")["out"] == ""
    assert "A.t1.checkpoint.tar is damaged" in point.err


def test_an_agent_restores_its_own_files_before_it_leaves(point: AccessPoint) -> None:
    point.first(train("A.t1"))
    spoil = "for f in agent.pyz condor_exec.exe; do rm ../../$f; ln -s /dev/null ../../$f; done"
    trap = "trap 'exit 85' TERM; echo > ready; sleep 600 & wait"
    with point.start("sh", "-c", f"{spoil}; {trap}") as agent:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 85
    assert (point.sandbox / "condor_exec.exe").read_text() == "ours"
    point.answers = [LEAVE]
    assert point.run("true") == 0


# -- the machine is wanted back ------------------------------------------------------------------


def test_an_agent_that_waits_for_an_order_leaves_on_sigterm(point: AccessPoint) -> None:
    with point.start("true") as agent:
        point.wait_for(lambda: said(point) == ["ask None"])
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 85


@pytest.mark.parametrize(("code", "recorded"), [(0, [("A.t1", 0)]), (3, [])])
def test_a_trial_that_ends_during_an_eviction_is_recorded_if_it_succeeded(
    point: AccessPoint, code: int, recorded: list[tuple[str, int]]
) -> None:
    point.first(train("A.t1"))
    point.answers = [LEAVE]
    with point.start("sh", "-c", f"trap 'exit {code}' TERM; echo > ready; sleep 600 & wait") as one:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        one.send_signal(signal.SIGTERM)
        assert one.wait(60) == 85
    assert point.recorded() == recorded
    assert not any(each["wants"] for each in point.said if each["say"] == "ended")


def test_a_result_on_its_way_is_reported_before_the_agent_leaves(point: AccessPoint) -> None:
    point.first(train("A.t1"))
    point.answers = [LEAVE]
    with point.start("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done") as agent:
        folder = point.sandbox / "trials/A.t1"
        point.wait_for((point.words / "reports.jsonl").exists)
        point.server.is_away = True
        (folder / "go").touch()
        assert "is repeated until it succeeds" in error_of(agent)
        agent.send_signal(signal.SIGTERM)
        point.server.is_away = False
        assert agent.wait(60) == 85
    assert point.recorded() == [("A.t1", 0)]
    assert "result.json" in point.left("A.t1")


def test_a_signal_for_the_trainer_is_passed_on(point: AccessPoint) -> None:
    point.first(train("A.t1", last=True))
    script = "trap 'exit 7' USR1; echo > ready; sleep 600 & wait"
    with point.start("sh", "-c", script) as agent:
        point.wait_for((point.sandbox / "trials/A.t1/ready").exists)
        agent.send_signal(signal.SIGUSR1)
        assert agent.wait(60) == 7


# -- trouble -------------------------------------------------------------------------------------


def test_an_unreachable_access_point_is_waited_for(point: AccessPoint) -> None:
    point.first(train("A.t1"))
    point.answers = [train("A.t2", last=True)]
    point.server.is_away = True
    with point.start("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done") as agent:
        assert "is repeated until it succeeds" in error_of(agent)
        point.server.is_away = False
        point.wait_for((point.sandbox / "trials/A.t1").exists)
        point.server.is_away = True
        (point.sandbox / "trials/A.t1/go").touch()
        assert "is repeated until it succeeds" in error_of(agent)
        point.server.is_away = False
        point.wait_for((point.sandbox / "trials/A.t2").exists)
        (point.sandbox / "trials/A.t2/go").touch()
        assert agent.wait(60) == 0
    assert point.recorded() == [("A.t1", 0), ("A.t2", 0)]


@pytest.mark.parametrize("removed", ["trials", ".job.ad"])
def test_a_job_whose_files_htcondor_removes_reports_no_end(
    point: AccessPoint, removed: str
) -> None:
    """A restarted startd removes them; without them a result would be incomplete."""
    point.first(train("A.t1", last=True))
    script = "while [ ! -e go ]; do sleep 0.01; done; echo '{}' > result.json"
    with point.start("sh", "-c", script) as agent:
        folder = point.sandbox / "trials/A.t1"
        point.wait_for((point.words / "reports.jsonl").exists)
        point.server.is_away = True
        (folder / "go").touch()
        assert "is repeated until it succeeds" in error_of(agent)
        gone = point.sandbox / removed
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        point.server.is_away = False
        assert agent.wait(60) == 85
    assert point.recorded() == []
    assert not (point.words / "A.t1.result.tar").exists()


def test_a_trainer_may_remove_its_result(point: AccessPoint) -> None:
    point.first(train("A.t1", last=True))
    assert point.run("sh", "-c", "rm result.json") == 0
    assert point.recorded() == [("A.t1", 0)]


def test_a_trainer_may_remove_its_folder(point: AccessPoint) -> None:
    """Its trial fails; otherwise HTCondor would restart the job again and again."""
    point.first(train("A.t1"))
    point.answers = [train("A.t2"), LEAVE]
    assert point.run("sh", "-c", 'rm -r "$PWD"') == 0
    assert point.recorded() == [("A.t1", 0), ("A.t2", 0)]
    assert point.left("A.t1").keys() == {"ended.json"}


@pytest.mark.parametrize("what", ["model/sparse", "checkpoint/sparse; exit 85"])
def test_files_larger_than_the_jobs_disk_are_not_sent(point: AccessPoint, what: str) -> None:
    point.first(train("A.t1", last=True, left=["model"]))
    assert point.run("sh", "-c", f"truncate -s 1T {what}") == 1
    assert (point.said[-1]["code"], point.said[-1]["over"]) == (1, "disk")
    assert point.left("A.t1").keys() == {"ended.json"}
    assert json.loads(point.left("A.t1")["ended.json"])["over"] == "disk"


def test_unreadable_files_are_left_out(point: AccessPoint) -> None:
    point.first(train("A.t1", last=True, left=["model"]))
    script = "ln -s /proc/self/mem model/m; mkfifo model/p; ln -s . model/l; ln -s x model/x"
    assert point.run("sh", "-c", f"{script}; echo > model/good") == 0
    left = [name for name in point.left("A.t1") if name.startswith("model")]
    assert left in (["model/good", "model/m"], ["model/good"])
    assert point.left("A.t1").get("model/m", "") == ""


def test_a_link_into_a_locked_folder_is_left_out(point: AccessPoint) -> None:
    point.first(train("A.t1", last=True, left=["model"]))
    script = "mkdir -m 0 ../../locked; ln -s $PWD/../../locked/file model/link; echo > model/m"
    assert point.wait(point.start("sh", "-c", script), 20) == 0
    assert point.left("A.t1")["model/m"] == "\n"


def test_a_file_that_is_shorter_than_its_size_fails_its_trial(point: AccessPoint) -> None:
    point.first(train("A.t1", left=["model"]))
    point.answers = [train("A.t2"), LEAVE]
    script = "case $PWD in *t1) ln -s /sys/class/net/lo/mtu model/mtu;; esac"
    assert point.wait(point.start("sh", "-c", script), 20) == 0
    assert point.recorded() == [("A.t1", 1), ("A.t2", 0)]
    left = point.left("A.t1")
    assert left.keys() == {"ended.json", "err"}
    assert left["err"] == "model/mtu can't be sent: it became shorter while it was read\n"


def test_a_job_ends_if_its_machine_cannot_write_a_file(point: AccessPoint) -> None:
    """A limit of the size of its files stands for a full disk."""
    (point.sandbox / "weights").write_bytes(bytes(100_000))
    with tarfile.open(point.words / "gate.given.tar", "w", format=tarfile.GNU_FORMAT) as given:
        given.add(point.sandbox / "weights", "champion/weights")
    point.answers, point.delay = [train("gate", given=True)], 0.5
    agent = point.start("touch", "trained")
    point.wait_for(lambda: said(point) == ["ask None"])
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    assert point.wait(agent, 20) == 87
    assert point.err == "trialfleet: [Errno 27] File too large\n"
    assert point.recorded() == []


ON_A_FULL_DISK = """\
from trialfleet.nodes.job import agent

agent.Channel.take = lambda: None
agent.ProcessTree.end = lambda _: None

def live(channel):
    print("said before", flush=False)
    raise OSError(28, "No space left on device")

agent.run(live)
"""


def test_a_full_disk_below_the_agents_own_output_is_the_machines_fault_too() -> None:
    with Path("/dev/full").open("w") as full:
        agent = [sys.executable, "-c", ON_A_FULL_DISK]
        assert subprocess.run(agent, stdout=full, stderr=full, check=False).returncode == 87


SPY = """\
import json, os
found = {"variable": os.environ.get("_CONDOR_CHIRP_CONFIG"), "files": os.listdir("../..")}
for name in ("environ", "mem", "maps", "fd/3", "fd/4", "fd/5", "fd/6"):
    try:
        found[name] = len(open(f"/proc/{os.getppid()}/{name}", "rb").read(1))
    except OSError as error:
        found[name] = error.strerror
print(json.dumps(found))
"""


def test_a_trainer_cannot_reach_the_access_point(point: AccessPoint) -> None:
    (point.sandbox / "spy.py").write_text(SPY)
    point.first(train("A.t1", last=True))
    assert point.run(sys.executable, "spy.py") == 0
    found = json.loads(point.left("A.t1")["out"])
    assert found.pop("variable") is None
    assert ".chirp.config" not in found.pop("files")
    assert {*found.values()} <= {"Permission denied", "No such file or directory"}


# -- messages of a previous agent ----------------------------------------------------------------

DONE = "echo '{}' > result.json"


def test_a_trainer_cannot_forge_its_trials_end_in_the_package(
    point: AccessPoint,
) -> None:
    point.first(train("A.t1", last=True, left=["model"]))
    forged = "echo '{\"code\": 0}' | tee ended.json > model/ended.json; exit 3"
    assert point.run("sh", "-c", forged) == 3
    with tarfile.open(point.words / "A.t1.result.tar") as package:
        names = package.getnames()
    assert names[0] == "ended.json"
    assert names.count("ended.json") == 1
    assert json.loads(point.left("A.t1")["ended.json"])["code"] == 3


@pytest.mark.parametrize(("script", "code"), [("exit 64", 64), ("kill -KILL $$", -signal.SIGKILL)])
def test_a_last_trial_with_an_arrived_package_is_not_trained_again(
    point: AccessPoint, tmp_path: Path, script: str, code: int
) -> None:
    point.first(train("A.t1", last=True))
    assert point.run("sh", "-c", script) == code
    (point.words / "agent.json").unlink()
    point.move(tmp_path / "elsewhere")
    assert point.run("sh", "-c", f"touch trained; {script}") == code
    assert not list(point.sandbox.rglob("trained"))


def test_a_package_without_its_trials_end_is_ignored(point: AccessPoint) -> None:
    for name, content in (("result.json", b'{"code": 0}'), ("ended.json", b"[]")):
        (point.sandbox / name).write_bytes(content)
        with tarfile.open(
            point.words / "A.t1.result.tar", "w", format=tarfile.GNU_FORMAT
        ) as package:
            package.add(point.sandbox / name, name)
        (point.words / "agent.json").write_bytes(b"")
        point.first(train("A.t1", last=True))
        assert point.run("sh", "-c", "exit 9") == 9
    (point.words / "A.t1.result.tar").write_bytes(b"no package" * 1000)
    (point.words / "agent.json").write_bytes(b"")
    assert point.run("sh", "-c", "exit 9") == 9


def test_a_last_trial_that_was_recorded_is_not_trained_again(point: AccessPoint) -> None:
    recorded = {"token": "before", "turn": 1, "say": "ended", "trial": "A.t1", "code": 64}
    (point.words / "agent.json").write_text(json.dumps({"schema": 1, "job": "12.0", **recorded}))
    point.first(train("A.t1", last=True))
    assert point.run("sh", "-c", "touch trained; " + DONE) == 64
    assert not list(point.sandbox.rglob("trained"))
    assert point.said == []


def test_an_answered_report_is_not_sent_again(point: AccessPoint) -> None:
    recorded = {"token": "before", "turn": 4, "say": "ended", "trial": "A.t1", "code": 0}
    (point.words / "agent.json").write_text(json.dumps({"schema": 1, "job": "12.0", **recorded}))
    point.order(token="before", turn=4, **train("A.t2"))
    point.answers = [LEAVE]
    assert point.run("sh", "-c", DONE) == 0
    assert [each["say"] for each in point.said] == ["ask"]


class Naps:
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def test_a_request_without_an_answer_is_an_error(
    point: AccessPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PATIENCE", 0.05)
    with closing(Chirp(*point.server.address)) as chirp:
        asking = messages.Messages(chirp, Naps())  # type: ignore[arg-type]
        with pytest.raises(messages.UnansweredError):
            asking.ask("ask", lambda: True)


BESIDE = """
import os, time
from pathlib import Path
import trial

def train(t):
    time.sleep(0.1)
    assert Path(__file__).with_name("beside.txt").read_text() == "ours"
    print(os.getpid())
    t.complete(loss=1)

trial.run(train)
"""


def test_a_resident_trainer_keeps_the_folder_in_which_it_began(
    point: AccessPoint,
) -> None:
    (point.sandbox / "beside.txt").write_text("ours")
    (point.sandbox / "train.py").write_text(BESIDE)
    shutil.copy(trial.__file__, point.sandbox / "trial.py")
    point.first(train("A.t1"))
    point.answers = [train(f"A.t{number}") for number in range(2, 5)] + [LEAVE]
    assert point.run(sys.executable, "train.py") == 0
    assert point.recorded() == [(f"A.t{number}", 0) for number in range(1, 5)]
    assert len({point.left(f"A.t{n}")["out"] for n in range(1, 5)}) == 1  # one process
