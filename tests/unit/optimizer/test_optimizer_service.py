"""Tests of the resident service and its client: start on demand, one at a time, kills."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.processes import is_alive
from trialfleet import programs
from trialfleet.optimizer import service_client

pytestmark = pytest.mark.slow

HANDLER = """
import os, sys, time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
folder, idle_timeout, wait = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "wait"
with open(folder / "started", "a") as started:
    started.write(f"{os.getpid()}\\n")
from trialfleet import restart_after_update
from trialfleet.errors import InputError, OptimizerError
from trialfleet.optimizer.service import Reply, serve

restart_after_update.SECONDS = 0.2
if (folder / "release.py").exists():
    spec = spec_from_file_location("trialfleet.release_of_a_test", folder / "release.py")
    release = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(release)


class Notes:
    # records its calls, so that tests can read them
    def handle(self, words):
        with open(folder / "served", "a", errors="surrogateescape") as notes:
            notes.write(f"begin {' '.join(words)}\\n")
        if words[0] == "slow":
            time.sleep(float(words[1]))
        if words[0] == "die once" and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), 9)
        if words[0] == "die":
            os.kill(os.getpid(), 9)
        if words[0] == "wrong":
            raise InputError("no such region: é")
        if words[0] == "bug":
            raise ZeroDivisionError("a mistake")
        if words[0] == "release":
            return Reply(0, f"{os.getpid()} {release.NAME}")
        if words[0] == "threads":
            return Reply(0, os.environ["OMP_NUM_THREADS"])
        with open(folder / "served", "a", errors="surrogateescape") as notes:
            notes.write(f"end {' '.join(words)}\\n")
        return Reply(int(words[1]) if words[0] == "exit" else 0, f"{os.getpid()} {words!r}")

    def idle(self):
        if (folder / "work").exists():
            count = int((folder / "work").read_text() or 0)
            (folder / "work").write_text(str(count + 1))
            if count == 3:
                raise ZeroDivisionError("in background work")
            return True
        return False

    def is_due(self):
        return (folder / "due").exists()

    def is_watching(self):
        return (folder / "watching").exists()

    @property
    def descriptor(self):
        bell = folder / "bell"
        return os.open(bell, os.O_RDWR | os.O_NONBLOCK) if bell.exists() else None

    def handle_events(self):
        with open(folder / "bell", "rb", buffering=0) as bell:
            word = bell.read(100).decode()
        with open(folder / "served", "a") as notes:
            notes.write(f"noticed {word}\\n")
        if word == "bug":
            raise ZeroDivisionError("a mistake")

def make():
    with open(folder / "made", "a") as made:
        made.write(f"{os.getpid()}\\n")
    if (folder / "broken").exists():
        raise InputError("the study is broken")
    if (folder / "away").exists():
        raise OptimizerError("the database is down")
    return Notes()

serve(folder, make, idle_timeout=idle_timeout if idle_timeout > 0 else None, wait_for_lock=wait)
"""


class Run:
    """A run's folder with a toy service."""

    def __init__(self, folder: Path, script: Path) -> None:
        self.folder = folder
        self._script = script

    def start(self, *, idle_timeout: float = 0, wait: bool = False) -> list[str]:
        mode = "wait" if wait else "once"
        return [sys.executable, str(self._script), str(self.folder), str(idle_timeout), mode]

    def popen(self, *, idle_timeout: float = 0, wait: bool = False) -> subprocess.Popen[str]:
        with (self.folder / "service.log").open("a") as log:
            command = self.start(idle_timeout=idle_timeout, wait=wait)
            return subprocess.Popen(command, stdout=log, stderr=log, text=True)

    def command(self, *words: str, start: list[str] | None = None) -> list[str]:
        to_start = start or self.start()
        options = ["--folder", str(self.folder), "--start", *to_start]
        return programs.command("ask-service", *options, "--", *words)

    def ask(self, *words: str, start: list[str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, start=start), capture_output=True, text=True, encoding="utf-8"
        )

    def ask_later(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, text=True)

    def ok(self, *words: str) -> str:
        result = self.ask(*words)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def started(self) -> list[int]:
        """Return the processes that were started to become the service."""
        return [int(line) for line in (self.folder / "started").read_text().split()]

    def pids(self) -> list[int]:
        """Return the processes that became the service, in order."""
        made = self.folder / "made"
        return [int(line) for line in made.read_text().split()] if made.exists() else []

    def served(self) -> list[str]:
        return (self.folder / "served").read_text().splitlines()

    def log(self) -> str:
        return (self.folder / "service.log").read_text()

    def raw(self, content: bytes) -> bytes:
        """Return the service's reply to arbitrary bytes."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(self.folder / "service.sock"))
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "handler.py"
    path.write_text(HANDLER)
    return path


@pytest.fixture
def run(tmp_path: Path, script: Path) -> Iterator[Run]:
    folder = tmp_path / 'a run\'s "folder" é'
    folder.mkdir()
    yield Run(folder, script)
    end(Run(folder, script))


def end(run: Run) -> None:
    """Kill all services, also starting ones: a client may have started several."""
    command = run.start()[1:3]
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:3] == command:
            process.kill()
            wait_until(lambda pid=process.pid: not is_alive(pid))  # type: ignore[misc]


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has installed a handler for a signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)


def waits_for_a_reply(pid: int) -> bool:
    """Return whether a client has sent its request: it sleeps with a socket open."""
    process = psutil.Process(pid)  # unlike reading /proc, works while descriptors are closed
    return process.status() == psutil.STATUS_SLEEPING and bool(process.net_connections("unix"))


# ---------------------------------------------------------------- requests


def test_a_client_starts_the_service_on_demand_and_the_next_finds_it(run: Run) -> None:
    first, second = run.ok("hello"), run.ok("again")
    (pid,) = run.pids()
    assert first == f"{pid} ['hello']\n"
    assert second == f"{pid} ['again']\n"
    assert os.getsid(pid) == pid, "the service outlives the client's session"


def test_arguments_arrive_exactly_as_given(run: Run) -> None:
    words = ["a b", "", "é", "new\nline", "tab\t", '"quoted"', "--", "-x", "\udcff", "x" * 60_000]
    answer = run.ok(*words)
    assert answer == f"{run.pids()[0]} {words!r}\n"


def test_the_client_exits_with_the_services_code_and_prints_failures_on_stderr(run: Run) -> None:
    assert run.ask("exit", "0").returncode == 0
    skipped = run.ask("exit", "3")
    assert (skipped.returncode, skipped.stdout) == (3, "")
    assert skipped.stderr.endswith("['exit', '3']\n")


def test_an_error_message_is_printed_in_any_locale(run: Run) -> None:
    run.ok("hello")
    result = subprocess.run(
        run.command("wrong"), capture_output=True, env=os.environ | {"LC_ALL": "C"}
    )
    assert result.returncode == 1
    assert result.stderr == "no such region: é\n".encode()


def test_an_exception_in_one_request_is_logged_and_the_service_continues(run: Run) -> None:
    result = run.ask("bug")
    assert result.returncode == 1
    assert "ZeroDivisionError: a mistake" in result.stderr
    assert "Traceback" in run.log()
    run.ok("hello")
    assert len(run.pids()) == 1


def test_requests_are_served_one_at_a_time(run: Run) -> None:
    run.ok("hello")
    clients = [run.ask_later("slow", "0.05", str(i)) for i in range(8)]
    assert [waiting.wait() for waiting in clients] == [0] * 8
    begins, ends = run.served()[2::2], run.served()[3::2]
    assert [line.replace("begin", "end") for line in begins] == ends
    assert len(set(begins)) == 8
    for waiting in clients:
        waiting.communicate()


def test_native_libraries_are_set_to_one_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run.ok("threads") == "1\n"


def test_background_work_continues_between_requests_and_after_exceptions(run: Run) -> None:
    run.ok("hello")
    (run.folder / "work").write_text("0")
    run.ok("hello")
    wait_until(lambda: run.log().count("Error: in background work") == 1)
    assert (run.folder / "work").read_text() == "4"
    run.ok("hello")  # a request makes new work likely
    wait_until(lambda: int((run.folder / "work").read_text() or 0) > 4)
    run.ok("hello")
    assert len(run.pids()) == 1


def _is_noticed(run: Run, word: str) -> bool:
    return f"noticed {word}" in run.served()


def test_an_event_without_a_request_is_handled_at_once(run: Run) -> None:
    bell = run.folder / "bell"
    os.mkfifo(bell)
    run.ok("hello")
    with bell.open("r+b", buffering=0) as rings:
        for word in ("first", "bug", "last"):
            rings.write(word.encode())
            wait_until(partial(_is_noticed, run, word))
    run.ok("hello")
    assert run.log().count("Error: a mistake") == 1
    assert len(run.pids()) == 1


# ---------------------------------------------------------------- broken clients


@pytest.mark.parametrize(
    "garbage",
    [b"\0", b"GET / HTTP/1.1\r\n\r\n", b"-5\nab", b"5\nabcd\0xyz", b"3\nabc", b"0\n", b"\n",
     b"99999999999\n", b"\xff" * 1000, b"9999999\n"],
)  # fmt: skip
def test_invalid_requests_are_refused_and_do_no_harm(run: Run, garbage: bytes) -> None:
    run.ok("hello")
    assert run.raw(garbage).startswith(b"1 ")
    run.ok("hello")


def test_clients_that_leave_early_or_send_nothing_do_no_harm(run: Run) -> None:
    run.ok("hello")
    assert run.raw(b"") == b""
    assert run.raw(b"10\nask\0") == b"", "half a request is none"
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(run.folder / "service.sock"))
    with socket.socket(socket.AF_UNIX) as impatient:
        impatient.connect(str(run.folder / "service.sock"))
        impatient.sendall(b"6\nhello\0")
    with silent:
        run.ok("hello")
    assert "half" not in (run.folder / "served").read_text()
    assert len(run.pids()) == 1


def test_a_client_prints_its_usage() -> None:
    for arguments in ([], ["--folder", "x"], ["--folder", "x", "--start", "--", "hi"],
                      ["--folder", "x", "--start", "y", "--"]):  # fmt: skip
        program = programs.command("ask-service", *arguments)
        result = subprocess.run(program, capture_output=True, text=True)
        assert result.returncode == 2
        assert result.stderr.startswith("usage:")


def test_a_missing_folder_and_a_missing_program_are_named(run: Run, tmp_path: Path) -> None:
    missing = Run(tmp_path / "nosuch", tmp_path)
    result = missing.ask("hello")
    assert result.returncode == 1
    assert f"{tmp_path}/nosuch" in result.stderr
    result = run.ask("hello", start=["/nosuch/program"])
    assert result.returncode == service_client.EXIT_NO_SERVICE
    assert "/nosuch/program: No such file" in result.stderr
    (run.folder / "service.log").unlink()
    (run.folder / "service.log").symlink_to("/nosuch/log")
    result = run.ask("hello")
    assert result.returncode == service_client.EXIT_NO_SERVICE
    assert result.stderr.endswith("service.log: No such file or directory\n")


def test_requests_are_answered_although_the_disk_is_full(run: Run) -> None:
    (run.folder / "service.log").symlink_to("/dev/full")
    assert run.ok("hello") == f"{run.pids()[0]} ['hello']\n"
    assert "ZeroDivisionError" in run.ask("bug").stderr


# ---------------------------------------------------------------- start and end


def test_many_clients_at_once_start_one_service(run: Run) -> None:
    clients = [run.ask_later("hello", str(i)) for i in range(8)]
    outputs = [waiting.communicate()[0] for waiting in clients]
    assert [waiting.returncode for waiting in clients] == [0] * 8
    (pid,) = run.pids()
    assert run.started() == [pid], "a service takes 70 MB before it does anything"
    assert {output.split()[0] for output in outputs} == {str(pid)}


def test_a_service_killed_during_a_request_is_replaced_and_the_request_repeated(run: Run) -> None:
    waiting = run.ask_later("slow", "1.5")
    wait_until((run.folder / "served").exists)
    queued = run.ask_later("hello")
    time.sleep(0.1)
    os.kill(run.pids()[0], signal.SIGKILL)
    assert waiting.communicate()[0].startswith(str(run.pids()[-1]))
    assert queued.communicate()[0].startswith(str(run.pids()[-1]))
    assert (waiting.returncode, queued.returncode) == (0, 0)
    assert len(run.pids()) == 2
    assert run.served().count("begin slow 1.5") == 2


def test_a_service_that_dies_once_costs_one_more_start(run: Run) -> None:
    run.ok("die once")
    assert len(run.pids()) == 2


def test_a_request_that_kills_every_service_ends_with_a_clear_error(run: Run) -> None:
    result = run.ask("die")
    assert result.returncode == service_client.EXIT_NO_SERVICE
    assert "died 5 times" in result.stderr
    assert "service.log" in result.stderr
    assert len(run.pids()) == service_client.ATTEMPTS


def test_an_unreachable_storage_gives_the_exit_code_for_a_later_try(run: Run) -> None:
    (run.folder / "away").touch()
    result = run.ask("hello")
    assert result.returncode == service_client.EXIT_NO_SERVICE
    assert "the database is down" in result.stderr


def test_a_service_that_cant_start_shows_its_own_message(run: Run) -> None:
    (run.folder / "broken").touch()
    result = run.ask("hello")
    assert result.returncode == service_client.EXIT_NO_SERVICE, "no trial is trained again for that"
    assert "ended with exit code 1" in result.stderr
    assert "the study is broken" in result.stderr
    assert len(run.pids()) == service_client.FAILED_STARTS


def test_a_stale_socket_is_replaced(run: Run) -> None:
    run.ok("hello")
    os.kill(run.pids()[0], signal.SIGKILL)
    wait_until(lambda: not is_alive(run.pids()[0]))
    assert (run.folder / "service.sock").exists()
    run.ok("hello")
    assert len(run.pids()) == 2


def test_sigterm_finishes_the_present_request_and_removes_the_socket(run: Run) -> None:
    service = run.popen()
    wait_until((run.folder / "service.sock").exists)
    waiting = run.ask_later("slow", "0.5")
    wait_until((run.folder / "served").exists)
    service.terminate()
    assert waiting.communicate()[0].startswith(str(service.pid))
    assert service.wait(timeout=20) == 0
    assert not (run.folder / "service.sock").exists()
    assert len(run.pids()) == 1


def test_sigterm_ends_a_service_that_waits_for_requests(run: Run) -> None:
    service = run.popen()
    wait_until((run.folder / "service.sock").exists)
    service.terminate()
    assert service.wait(timeout=4) == 0


def test_a_script_repeats_no_request_after_its_dagman_has_ended(run: Run, tmp_path: Path) -> None:
    """The next DAGMan runs the script too; a late ask would empty the folder of a running trial."""
    run.ok("hello")
    (service,) = run.pids()
    os.kill(service, signal.SIGSTOP)
    code = (
        "import subprocess, sys, time; script = subprocess.Popen(sys.argv[1:]); "
        "print(script.pid, flush=True); time.sleep(600)"
    )
    dagman = subprocess.Popen(
        [sys.executable, "-c", code, *run.command("late")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert dagman.stdout
    with dagman.stdout as output:
        script = int(output.readline())
    wait_until(lambda: waits_for_a_reply(script))
    dagman.kill()
    dagman.wait()
    os.kill(service, signal.SIGKILL)
    wait_until(lambda: not is_alive(script))
    assert "begin late" not in run.served()


def test_a_request_is_not_served_after_its_client_is_gone(run: Run) -> None:
    run.ok("hello")
    os.kill(run.pids()[0], signal.SIGSTOP)
    impatient = run.ask_later("impatient")
    wait_until(lambda: waits_for_a_reply(impatient.pid))
    impatient.kill()
    impatient.communicate()
    os.kill(run.pids()[0], signal.SIGCONT)
    run.ok("again")
    assert "begin impatient" not in run.served()


def test_a_second_service_returns_at_once_or_waits_for_the_first_to_end(run: Run) -> None:
    first = run.popen()
    wait_until((run.folder / "service.sock").exists)
    assert run.popen().wait(timeout=30) == 0
    waiting = run.popen(wait=True)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=0.5)
    first.kill()
    first.wait()
    wait_until(lambda: run.pids() == [first.pid, waiting.pid])
    assert run.ok("hello").startswith(str(waiting.pid))
    assert waiting.poll() is None
    another = run.popen(wait=True)
    wait_until(lambda: handles(another.pid, signal.SIGTERM))
    another.terminate()
    assert another.wait(timeout=20) == 0, "SIGTERM ends a wait for the lock"
    waiting.kill()
    waiting.wait()


def test_an_idle_service_ends_after_its_timeout_and_not_before_a_request_is_served(
    run: Run,
) -> None:
    service = run.popen(idle_timeout=0.4)
    wait_until((run.folder / "service.sock").exists)
    run.ok("slow", "0.8")
    assert service.wait(timeout=20) == 0
    assert not (run.folder / "service.sock").exists()
    assert "no request for" in run.log()


def test_an_idle_service_stays_while_it_watches_and_does_due_work(run: Run) -> None:
    (run.folder / "watching").touch()
    service = run.popen(idle_timeout=0.4)
    wait_until((run.folder / "service.sock").exists)
    (run.folder / "work").write_text("10")
    (run.folder / "due").touch()
    wait_until(lambda: int((run.folder / "work").read_text() or 0) > 11)  # without a request
    (run.folder / "work").unlink()
    (run.folder / "due").unlink()
    (run.folder / "watching").unlink()
    assert service.wait(timeout=20) == 0


def test_a_service_whose_socket_is_gone_ends_so_that_another_can_start(run: Run) -> None:
    run.ok("hello")
    (run.folder / "service.sock").unlink()
    run.ok("hello")
    first, second = run.pids()
    assert not is_alive(first)
    assert is_alive(second)


def test_a_watching_service_sleeps_between_checks_after_its_timeout(run: Run) -> None:
    (run.folder / "watching").touch()
    service = run.popen(idle_timeout=0.01)
    wait_until((run.folder / "service.sock").exists)
    process = psutil.Process(service.pid)
    before = process.num_ctx_switches().voluntary
    wait_until(lambda: process.num_ctx_switches().voluntary > before + 4)  # each sleep is one
    service.kill()
    service.wait()


def test_a_watching_service_ends_after_its_timeout_if_its_socket_is_gone(run: Run) -> None:
    (run.folder / "watching").touch()
    service = run.popen(idle_timeout=0.01)
    wait_until((run.folder / "service.sock").exists)
    (run.folder / "service.sock").unlink()
    assert service.wait(timeout=20) == 0
    assert "service.sock is gone" in run.log()


def test_a_service_restarts_as_the_new_release_after_an_update(run: Run) -> None:
    """Otherwise the old release's code would use the new release's templates."""
    release = run.folder / "release.py"
    release.write_text("NAME = 'old'")
    pid, name = run.ok("release").split()
    assert name == "old"

    new = release.with_suffix(".new")
    new.write_text("NAME = 'newer'")
    new.replace(release)

    wait_until(lambda: run.ok("release").split() == [pid, "newer"])
    assert run.started() == [int(pid), int(pid)]


def test_the_lock_is_held_while_the_service_lives(run: Run) -> None:
    run.ok("hello")
    with (run.folder / "service.lock").open("a") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(run.pids()[0], signal.SIGKILL)
        wait_until(lambda: not is_alive(run.pids()[0]))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_only_the_owner_can_use_the_socket(run: Run) -> None:
    run.ok("hello")
    assert stat.S_IMODE((run.folder / "service.sock").stat().st_mode) == 0o600


def test_a_folders_path_may_be_longer_than_a_sockets_address(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / ("x" * 150) / ("é" * 100)
    folder.mkdir(parents=True)
    run = Run(folder, script)
    try:
        run.ok("hello")
        run.ok("again")
        assert len(run.pids()) == 1
    finally:
        end(run)


@pytest.mark.parametrize("half", [b"", b"0", b"0 5", b"0 5\n", b"0 5\nhell"])
def test_an_incomplete_reply_counts_as_no_reply(half: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(half)
        theirs.shutdown(socket.SHUT_WR)
        assert service_client._exchange_messages(ours, ["hi"], "/nosuch") is None
        assert theirs.recv(100) == b"3\nhi\0"


def test_a_relative_folder_is_relative_to_the_clients_folder(run: Run) -> None:
    command = run.command("hello")
    command[command.index("--folder") + 1] = "."
    result = subprocess.run(command, cwd=run.folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_client_imports_only_the_standard_librarys_fast_modules() -> None:
    python, *words = programs.command("ask-service")
    command = [python, "-X", "importtime", *words]
    lines = subprocess.run(command, capture_output=True, text=True).stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert {"service_client", "_socket"} <= loaded
    slow = {"json", "socket", "re", "subprocess", "argparse", "typing", "contextlib", "importlib"}
    assert not loaded & slow


# ---------------------------------------------------------------- a service that does not answer


def trouble_of(run: Run) -> str:
    try:
        return str(json.loads((run.folder / service_client.TROUBLE).read_text())["error"])
    except FileNotFoundError:
        return ""


def test_a_frozen_service_is_recorded_only_while_a_client_waits(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "NOTE_SECONDS", 0.3)
    run.ok("hello")
    (pid,) = run.pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        # in a thread of this process, where the client's limits are shorter
        monkeypatch.setattr(sys, "argv", run.command("hello")[4:])
        asking = threading.Thread(target=service_client.main, daemon=True)
        asking.start()
        expected = f"the optimiser's service (process {pid}) has not answered the request `hello` "
        wait_until(lambda: trouble_of(run).startswith(expected))
    finally:
        os.kill(pid, signal.SIGCONT)
    asking.join(30)
    assert trouble_of(run) == ""


FULL_QUEUE = """
import socket, sys
from trialfleet.optimizer import service_client as client

folder, waiting = sys.argv[1], []
path = f"{folder}/{client.SOCKET}"
with socket.socket(socket.AF_UNIX) as frozen:
    frozen.bind(path)
    frozen.listen(1)
    while True:  # supervisor, page and scripts have connected, and nothing accepts them
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].settimeout(0)
        try:
            waiting[-1].connect(path)
        except BlockingIOError:
            break
    assert client.is_served(folder)
    try:
        client.request(folder, ["ask"], ["false"])
    except client.ServiceError as error:
        print(error, error.for_now)
"""


def test_a_frozen_service_with_a_full_queue_blocks_no_other_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_QUEUE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the optimiser's service accepts no connections True\n"


def test_a_service_with_a_recent_log_entry_is_not_silent(run: Run) -> None:
    assert not service_client._logs(str(run.folder))
    log = run.folder / "service.log"
    log.touch()
    assert service_client._logs(str(run.folder)), "it may have others to answer"
    os.utime(log, (1, 1))
    assert not service_client._logs(str(run.folder))


def test_a_service_that_cant_start_is_recorded_until_one_answers(run: Run) -> None:
    (run.folder / "broken").touch()
    run.ask("hello")
    assert "ended with exit code 1" in trouble_of(run)
    assert "the study is broken" in trouble_of(run)
    note = run.folder / service_client.TROUBLE
    long_ago = {
        **json.loads(note.read_text()),
        "since": time.time() - service_client.PATIENCE_SECONDS,
    }
    note.write_text(json.dumps(long_ago))
    assert run.ask("hello").returncode == 1
    (run.folder / "broken").unlink()
    run.ok("hello")
    assert trouble_of(run) == ""


def test_a_removed_run_has_no_service(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        service_client.is_served(str(tmp_path / "removed"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_service_of_another_user_counts_as_running() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as service:
        Path(folder).chmod(0o755)
        service.bind(f"{folder}/{service_client.SOCKET}")
        service.listen()
        nobody = 65534
        os.seteuid(nobody)
        try:
            assert service_client.is_served(folder)
        finally:
            os.seteuid(0)
