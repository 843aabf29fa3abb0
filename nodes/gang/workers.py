"""The server that starts the processes of one machine that train.

    python3 agent.pyz workers DESCRIPTOR COMMAND…

is a program of its own, which has never seen the job's channel to the access point, and so is no
way to it for what it forks. It imports torch once, which takes seconds, and never touches CUDA: a
worker that is a Python script is forked and begins within some tenths of a second. Any other
command is executed. A worker comes to be a child of the agent, to which orphans go.
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
START_SECONDS = 60.0  # so long a worker may take to be there
_LONGEST = 1 << 16  # bytes of a message between the agent and the server


class Server:
    """The agent's end of the server. It is there once torch is imported.

    Where it can't be started, or has ended: OSError.

    Args:
        command: what each worker runs.
        folder: a descriptor that the server keeps open, for its workers.

    Attributes:
        pid: the server's process.
    """

    def __init__(self, command: Sequence[str], folder: int) -> None:
        self._connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = (sys.executable, sys.argv[0], "workers", str(its.fileno()), *command)
        with its:
            self.pid = subprocess.Popen(words, pass_fds=(its.fileno(), folder)).pid
        self._number()
        self._connection.settimeout(START_SECONDS)

    def start(self, folder: Path, variables: Mapping[str, str]) -> int:
        """Start a worker in a trial's folder, with more variables, and return its process."""
        message = {"folder": str(folder), "variables": variables}
        self._connection.send(json.dumps(message).encode())
        return self._number()

    def _number(self) -> int:
        if not (message := self._connection.recv(_LONGEST)):
            raise OSError("the server of workers has ended")
        return int(message)


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
    order = _serve(connection)
    if order is None:
        return
    _be_worker(Path(order["folder"]), order["variables"])
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


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a worker for each message; return that in the worker, None when the agent has ended."""
    connection.send(str(os.getpid()).encode())
    while message := connection.recv(_LONGEST):
        if between := os.fork():
            os.waitpid(between, 0)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:  # the agent is about to become its parent
            time.sleep(0.0005)
        connection.send(str(os.getpid()).encode())
        connection.close()
        order: dict[str, Any] = json.loads(message)
        return order
    return None


def _be_worker(folder: Path, variables: Mapping[str, str]) -> None:
    """Be in the trial's folder, with nothing of the server's signals; end when the agent ends."""
    os.setsid()
    for number in _OWN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()
    os.chdir(folder)
    os.environ.update(variables, TRIALFLEET_TRIAL=TRIAL, PYTHONUNBUFFERED="1")
    for stream, name in ((1, OUT), (2, ERR)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)


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
