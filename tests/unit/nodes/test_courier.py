"""What a trial's courier carries. Chirp is spoken by a stand-in here; tests/pool has HTCondor's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.unit.nodes.chirp_server import ChirpServer
from trialfleet.infra.pool.user_namespace import identity
from trialfleet.nodes import courier
from trialfleet.nodes.chirp import Chirp
from trialfleet.nodes.courier import Courier


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    (folder / "stop.json").touch()
    return folder


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ChirpServer]:
    folder = tmp_path / "on-the-access-point"
    (folder / "words").mkdir(parents=True)
    (folder / "words/stop.json").touch()
    with ChirpServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def one(sandbox: Path, proxy: ChirpServer) -> Iterator[Courier]:
    with Chirp(*proxy.address) as chirp:
        yield Courier(sandbox, chirp)


def reports(proxy: ChirpServer) -> str:
    return (proxy.folder / "words/reports.jsonl").read_text()


def add(sandbox: Path, *lines: str) -> None:
    with (sandbox / "progress.jsonl").open("a") as file:
        file.writelines(lines)


def test_reports_are_carried_as_they_come_and_no_half_line(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    assert one.turn() is False
    add(sandbox, "a\n", "b\n", "half")
    one.turn()
    assert reports(proxy) == "a\nb\n"
    add(sandbox, " a line\n")
    one.turn()
    assert reports(proxy) == (sandbox / "progress.jsonl").read_text()


def test_a_courier_elsewhere_begins_with_what_the_checkpoint_had(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    (proxy.folder / "words/reports.jsonl").write_text("1\n2\n3\nof the machine before\n")
    add(sandbox, "1\n", "2\n")
    one.turn()
    assert reports(proxy) == "1\n2\n"


def test_a_courier_begins_with_no_reports_where_the_trainer_has_none_yet(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    (proxy.folder / "words/reports.jsonl").write_text("of the machine before\n")
    add(sandbox)
    one.turn()
    assert reports(proxy) == ""
    assert proxy.kills == 0
    add(sandbox, "1\n")
    one.turn()
    assert reports(proxy) == "1\n"


def test_progress_that_was_cut_is_told_again(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    add(sandbox, "1\n", "2\n", "3\n")
    one.turn()
    (sandbox / "progress.jsonl").write_text("1\n")
    one.turn()
    assert reports(proxy) == "1\n"


def test_much_progress_takes_several_turns(
    sandbox: Path, one: Courier, proxy: ChirpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "MOST_BYTES", 10)
    add(sandbox, *(f"{i}\n" for i in range(20)), "a line longer than a turn\n")
    for _ in range(12):
        one.turn()
    assert reports(proxy) == (sandbox / "progress.jsonl").read_text()


@pytest.mark.parametrize("word", ["cookie", "open", "pwrite", "close", "getfile"])
def test_what_fails_is_tried_again(
    sandbox: Path, one: Courier, proxy: ChirpServer, word: str
) -> None:
    add(sandbox, "1\n", "2\n")
    proxy.refused = word
    with pytest.raises(OSError, match=word):
        one.turn()
    proxy.refused = ""
    one.turn()
    assert reports(proxy) == "1\n2\n"


def test_reports_that_a_full_disk_did_not_take_are_sent_again(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    add(sandbox, "1\n", "2\n")
    proxy.room = 3
    with pytest.raises(OSError, match="3 of 4 bytes"):
        one.turn()
    proxy.room = 1000
    one.turn()
    assert reports(proxy) == "1\n2\n"


def test_the_order_to_stop_comes_whole(sandbox: Path, one: Courier, proxy: ChirpServer) -> None:
    (proxy.folder / "words/stop.json").write_text('{"predicted": 0.5}')
    assert one.turn() is True
    assert (sandbox / "stop.json").read_text() == '{"predicted": 0.5}'


def start(
    sandbox: Path, proxy: ChirpServer, *command: str, grace: float = 600
) -> subprocess.Popen[str]:
    """Start a trainer by its courier, as RUN/start does; for root by the account of its jobs."""
    return subprocess.Popen(
        [*identity().prefix, sys.executable, "-I", "-S", courier.__file__, str(grace), *command],
        cwd=sandbox,
        env={**os.environ, "_CONDOR_CHIRP_CONFIG": str(proxy.write_config(sandbox))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_trainer_that_goes_on_gets_sigterm(sandbox: Path, proxy: ChirpServer) -> None:
    (proxy.folder / "words/stop.json").write_text('{"predicted": 0.5}')
    with start(sandbox, proxy, "sleep", "600", grace=0.1) as trainer:
        assert trainer.wait(60) == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 64", 64),
        ("exit 85", 85),
        ("kill -SEGV $$", -signal.SIGSEGV),
        ("kill -KILL $$", -signal.SIGKILL),
        ("exec nothing-of-that-name", 127),
    ],
)
def test_a_job_ends_as_its_trainer_did(
    sandbox: Path, proxy: ChirpServer, script: str, code: int
) -> None:
    (sandbox / "courier.py").write_text("ours")
    spoil = "echo out; echo err >&2; rm courier.py; ln -s /dev/null courier.py"
    with start(sandbox, proxy, "sh", "-c", f"{spoil}; {script}") as job:
        out, err = job.communicate(timeout=60)
    assert (job.returncode, out) == (code, "out\n")
    assert err.startswith("err\n")
    # after 85 HTCondor starts the job again in the same sandbox
    assert (sandbox / ".chirp.config").exists() is (code == 85)
    assert (sandbox / "courier.py").is_symlink() is (code != 85)


@pytest.mark.slow
def test_a_program_that_is_missing_or_no_program_is_told_as_by_the_shell(
    sandbox: Path, proxy: ChirpServer
) -> None:
    for word, code in (("nothing-of-that-name", 127), ("./stop.json", 126)):
        with start(sandbox, proxy, word) as job:
            assert word in job.communicate(timeout=60)[1]
        assert job.returncode == code


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_goes_to_the_trainer(
    sandbox: Path, proxy: ChirpServer, number: signal.Signals
) -> None:
    trap = f"trap 'echo saved > checkpoint; exit 85' {number.value}; echo ready; sleep 600 & wait"
    with start(sandbox, proxy, "sh", "-c", trap) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        job.send_signal(number)
        assert job.wait(60) == 85
    assert (sandbox / "checkpoint").exists()
    assert not left_over("600"), "nothing of the trainer is there when the file is given back"


def left_over(word: str) -> list[int]:
    """Processes of this test's that sleep."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", word]:
            found.append(process.pid)
    return found


SPY = """\
import json, os, socket
from pathlib import Path
found = {"variable": os.environ.get("_CONDOR_CHIRP_CONFIG"), "files": os.listdir(".")}
for name in ("environ", "mem", "maps", "fd/3", "fd/4", "fd/5"):
    try:
        found[name] = len(open(f"/proc/{os.getppid()}/{name}", "rb").read(1))
    except OSError as error:
        found[name] = error.strerror
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_trainer_finds_no_way_to_the_access_point(sandbox: Path, proxy: ChirpServer) -> None:
    (sandbox / "spy.py").write_text(SPY)
    with start(sandbox, proxy, sys.executable, "spy.py") as job:
        found = json.loads(job.communicate(timeout=60)[0])
    assert found.pop("variable") is None
    assert ".chirp.config" not in found.pop("files")
    assert {*found.values()} <= {"Permission denied", "No such file or directory"}


@pytest.mark.slow
def test_a_trainer_outside_of_a_job_runs_without_reports(sandbox: Path) -> None:
    environment = {n: v for n, v in os.environ.items() if n != "_CONDOR_CHIRP_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", courier.__file__, "1", "sh", "-c", "exit 3"],
        cwd=sandbox,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "no early stopping of this trial: $_CONDOR_CHIRP_CONFIG is not set" in done.stderr
