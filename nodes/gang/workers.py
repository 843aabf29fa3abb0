"""The server process that starts a gang's workers (training processes) on one machine.

    python3 agent.pyz workers DESCRIPTOR COMMAND…

The job's agent (its first process) starts the server. The server starts the workers, but the agent
becomes their parent process and gets their exit codes. Only the agent can access the job's files on
the access point.

The server forks a process for each worker. If COMMAND runs a Python script, the forked process runs
the script without starting another Python. If COMMAND runs another program, the forked process
executes that program. If the trainer imports torch, the server imports torch before it forks. So
this import, which takes seconds, happens only once. The server never uses CUDA, because forked
workers could then not use CUDA.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trialfleet.nodes import TRIAL
from trialfleet.nodes.job.folder import ERR, OUT

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_IMPORTS_TORCH = re.compile(r"^\s*(import|from)\s+torch\b", re.MULTILINE)
_OWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
START_SECONDS = 60.0  # time limit for a worker's start
_LONGEST = 1 << 16  # bytes of a message between the agent and the server


class Server:
    """The agent's connection to the server, whose process id is `pid`.

    The constructor starts the server and waits until it is ready. `folder` is a file descriptor of
    the folder with the agent's socket (`SaveSocket`). The server keeps the descriptor open, so that
    workers can reach the socket. The constructor and the methods raise OSError if the server has
    ended or does not answer.
    """

    def __init__(self, command: Sequence[str], folder: int) -> None:
        self._connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = (sys.executable, sys.argv[0], "workers", str(its.fileno()), *command)
        with its:
            self.pid = subprocess.Popen(words, pass_fds=(its.fileno(), folder)).pid
        self._number()
        self._connection.settimeout(START_SECONDS)

    def start(self, folder: Path, variables: Mapping[str, str]) -> int:
        """Start a worker in the trial's `folder`, with `variables` added to its environment.

        Return the worker's pid.
        """
        message = {"folder": str(folder), "variables": variables}
        self._connection.send(json.dumps(message).encode())
        return self._number()

    def _number(self) -> int:
        if not (message := self._connection.recv(_LONGEST)):
            raise OSError("the process that starts the gang's workers has ended")
        return int(message)


def find_script(words: Sequence[str]) -> list[str]:
    """Return the Python script that the command `words` runs, and the script's arguments.

    Return [] if the command does not run a script with this Python.
    """
    if len(words) < 2 or words[1].startswith("-") or not words[1].endswith(".py"):
        return []
    return [*words[1:]] if _is_own_python(words[0]) else []


def _is_own_python(word: str) -> bool:
    """Return whether the program `word` is the Python that runs this process.

    The Python of another virtual environment does not count, even if both are links to one file.
    """
    found = shutil.which(word)
    if found is None or Path(found).parent.absolute() != Path(sys.executable).parent:
        return False
    return Path(found).resolve() == Path(sys.executable).resolve()


def main(words: Sequence[str]) -> None:
    """Run the server until the agent ends.

    `words` has the file descriptor of the connection to the agent, then the workers' command. The
    server forks a process for each worker, and in this process the function runs the command.
    """
    connection, command = socket.socket(fileno=int(words[0])), [*words[1:]]
    connection.set_inheritable(False)
    _die_with_parent()
    script = find_script(command)
    if script:
        _import_torch()
    order = _serve(connection)
    if order is None:
        return
    _be_worker(Path(order["folder"]), order["variables"])
    if script:
        _run_script(script)
    else:
        _execute(command)


def _import_torch() -> None:
    sys.path.insert(0, str(Path.cwd()))
    texts = (p.read_text(encoding="utf-8", errors="replace") for p in Path.cwd().glob("*.py"))
    if any(_IMPORTS_TORCH.search(text) for text in texts):
        with suppress(ImportError):
            import torch.distributed  # noqa: F401


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a worker for each message from the agent.

    In a worker, return the worker's message. In the server, return None once the agent has ended.
    """
    connection.send(str(os.getpid()).encode())
    while message := connection.recv(_LONGEST):
        if between := os.fork():
            os.waitpid(between, 0)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:  # wait until the agent is its parent
            time.sleep(0.0005)
        connection.send(str(os.getpid()).encode())
        connection.close()
        order: dict[str, Any] = json.loads(message)
        return order
    return None


def _be_worker(folder: Path, variables: Mapping[str, str]) -> None:
    os.setsid()
    for number in _OWN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()
    os.chdir(folder)
    os.environ.update(variables, TRIALFLEET_TRIAL=str(folder / TRIAL), PYTHONUNBUFFERED="1")
    for stream, name in ((1, OUT), (2, ERR)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)


def _die_with_parent() -> None:
    parent = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def _run_script(words: Sequence[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "trialfleet"]:
        del sys.modules[name]  # the script's own trialfleet may have more modules
    if "numpy" in sys.modules:  # forked workers would otherwise draw the same numbers
        sys.modules["numpy"].random.seed()
    sys.argv = [*words]
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


def _execute(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)  # noqa: S606 - the trainer's own command
    except OSError as error:
        print(f"{command[0]} can't be run: {error}", file=sys.stderr, flush=True)
        os._exit(126 if isinstance(error, PermissionError) else 127)
