"""The processes of one machine that train, and the server that starts them.

    python3 agent.pyz workers DESCRIPTOR COMMAND…

is the server: a program of its own, which has never seen the job's channel to the access point, and
so is no way to it for what it forks. It imports torch once, which takes seconds, and never touches
CUDA: a worker that is a Python script is forked and begins within some tenths of a second. Any
other command is executed.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_IMPORTS_TORCH = re.compile(r"^\s*(import|from)\s+torch\b", re.MULTILINE)
_OWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_LONGEST = 1 << 16  # bytes of a message between the agent and the server
_Ended = tuple[int, int | None]  # a worker's process, and its exit code


class Worker:
    """A process that trains, first of its own process group.

    Attributes:
        pid: its number.
    """

    def __init__(self, server: Server, pid: int) -> None:
        self._server, self.pid = server, pid

    def poll(self) -> int | None:
        """Return its exit code, minus the signal's number; None while it runs."""
        return self._server.code_of(self.pid)

    def send(self, number: int, *, to_all: bool = False) -> None:
        """Send a signal to it, or to all processes of its group."""
        if self.poll() is not None:
            return
        if to_all:
            with suppress(ProcessLookupError):  # it has just been forked, and leads no group yet
                os.killpg(self.pid, number)
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def is_stopped(self) -> bool:
        """Tell whether somebody has stopped its process (SIGSTOP)."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] == ["T"]


class Server:
    """The agent's end of the server. It is there once torch is imported.

    Args:
        command: what each worker runs.
        folder: a descriptor that the server keeps open, for its workers.

    Attributes:
        pid: the server's process.

    Raises:
        OSError: it can't be started.
    """

    def __init__(self, command: Sequence[str], folder: int) -> None:
        self._connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int | None] = {}
        words = (sys.executable, sys.argv[0], "workers", str(its.fileno()), *command)
        with its:
            self.pid = subprocess.Popen(words, pass_fds=(its.fileno(), folder)).pid
        self._receive()

    def start(self, variables: Mapping[str, str]) -> Worker:
        """Start a worker.

        Args:
            variables: what its environment has beside the server's.

        Raises:
            OSError: the server has ended.
        """
        self._connection.send(json.dumps(variables).encode())
        while True:
            pid, code = self._receive()
            self._codes[pid] = code
            if code is None:
                return Worker(self, pid)

    def code_of(self, pid: int) -> int | None:
        """Return a worker's exit code, None while it runs; all end with the server."""
        with suppress(OSError):
            while self._codes[pid] is None and select.select([self._connection], [], [], 0)[0]:
                ended, code = self._receive()
                self._codes[ended] = code
        return self._codes[pid]

    def _receive(self) -> _Ended:
        message = self._connection.recv(_LONGEST)
        if not message:
            self._codes = {pid: code or -signal.SIGKILL for pid, code in self._codes.items()}
            raise OSError("the server of workers has ended")
        pid, code = json.loads(message)
        return pid, code


def script_of(words: Sequence[str]) -> list[str]:
    """Return a command's script and its arguments; empty where this Python doesn't run it."""
    if len(words) < 2 or words[1].startswith("-") or not words[1].endswith(".py"):
        return []
    return [*words[1:]] if _is_own_python(words[0]) else []


def _is_own_python(word: str) -> bool:
    """Tell whether a program is this very Python; an environment's own is a link to another's."""
    found = shutil.which(word)
    if found is None or Path(found).parent.absolute() != Path(sys.executable).parent:
        return False
    return Path(found).resolve() == Path(sys.executable).resolve()


def main(words: Sequence[str]) -> None:
    """Serve until the agent has ended. In a worker, run the command of the arguments."""
    connection, command = socket.socket(fileno=int(words[0])), [*words[1:]]
    connection.set_inheritable(False)
    _die_with_parent()
    script = script_of(command)
    if script:
        _preload()
    variables = _serve(connection)
    if variables is None:
        return
    _leave_server()
    os.environ.update(variables)
    if script:
        _run_script(script)
    else:
        _execute(command)


def _preload() -> None:
    """Import torch, once for all workers, if a script is to use it."""
    sys.path.insert(0, str(Path.cwd()))
    texts = (p.read_text(encoding="utf-8", errors="replace") for p in Path.cwd().glob("*.py"))
    if any(_IMPORTS_TORCH.search(text) for text in texts):
        with suppress(ImportError):
            import torch.distributed  # noqa: F401


def _serve(connection: socket.socket) -> dict[str, str] | None:
    """Fork a worker for each message; return its variables there, None when the agent has ended."""
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    _tell(connection, (os.getpid(), None))
    while True:
        ready = select.select([connection.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, _LONGEST)
            _tell_of_ends(connection)
        if connection.fileno() in ready:
            message = connection.recv(_LONGEST)
            if not message:
                return None
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                for descriptor in (woken, wakes, connection.detach()):
                    os.close(descriptor)
                return dict(json.loads(message))
            _tell(connection, (pid, None))


def _tell_of_ends(connection: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _tell(connection, (ended[0], os.waitstatus_to_exitcode(ended[1])))


def _tell(connection: socket.socket, told: _Ended) -> None:
    with suppress(BrokenPipeError):
        connection.send(json.dumps(told).encode())


def _leave_server() -> None:
    """Become a process group, with nothing of the server's signals; end when the server ends."""
    with suppress(PermissionError):  # it leads one already
        os.setpgid(0, 0)
    for number in _OWN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()


def _die_with_parent() -> None:
    parent = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended meanwhile
        os._exit(1)


def _run_script(words: Sequence[str]) -> None:
    """Be `python SCRIPT ARGUMENTS`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trialfleet"]:
        del sys.modules[name]  # the script's own may be more than what travels with a job
    if "numpy" in sys.modules:  # a forked process would draw the same numbers as the one before it
        sys.modules["numpy"].random.seed()
    sys.argv = [*words]
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


def _execute(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)  # noqa: S606 - the trainer's own words
    except OSError as error:
        print(f"{command[0]} can't be run: {error}", file=sys.stderr, flush=True)
        os._exit(126 if isinstance(error, PermissionError) else 127)
