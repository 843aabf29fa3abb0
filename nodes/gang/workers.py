"""The processes of one machine that train: forked where they are Python scripts, else started.

The agent has imported torch already, which takes seconds, and has never touched CUDA: a forked
worker begins within some tenths of a second.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_IMPORTS_TORCH = re.compile(r"^\s*(import|from)\s+torch\b", re.MULTILINE)
_OWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Worker(Protocol):
    """A process that trains, first of its own process group."""

    @property
    def pid(self) -> int | None:
        """Its number."""

    def poll(self) -> int | None:
        """Return its exit code, minus the signal's number; None while it runs."""


class _Forked:
    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(target=_run_script, args=(words, variables))
        self._process.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode


class _Started:
    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **variables},
            preexec_fn=_leave_agent,  # noqa: PLW1509 - the agent has one thread
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()


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


def preload(words: Sequence[str], sandbox: Path) -> None:
    """Import torch, once for all workers, if a script is to use it."""
    if not script_of(words):
        return
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in sandbox.glob("*.py"))
    if any(_IMPORTS_TORCH.search(text) for text in texts):
        with suppress(ImportError):
            import torch.distributed  # noqa: F401


def start(words: Sequence[str], variables: Mapping[str, str]) -> Worker:
    """Start a worker.

    Args:
        words: the trainer's command.
        variables: what its environment has beside the agent's.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    script = script_of(words)
    return _Forked(script, variables) if script else _Started(words, variables)


def send(worker: Worker, number: int, *, to_all: bool = False) -> None:
    """Send a signal to a worker, or to all processes of its group."""
    if worker.pid is None or worker.poll() is not None:
        return
    if to_all:
        with suppress(ProcessLookupError):  # it has just been forked, and leads no group yet
            os.killpg(worker.pid, number)
    with suppress(ProcessLookupError):
        os.kill(worker.pid, number)


def is_stopped(worker: Worker) -> bool:
    """Tell whether somebody has stopped a worker's process (SIGSTOP)."""
    try:
        stat = Path(f"/proc/{worker.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]


def _leave_agent() -> None:
    """Become a process group, with nothing of the agent's signals; end when the agent ends."""
    parent = os.getppid()
    with suppress(PermissionError):  # it leads one already
        os.setpgid(0, 0)
    for number in _OWN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended meanwhile
        os._exit(1)


def _run_script(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Be `python SCRIPT ARGUMENTS`."""
    _leave_agent()
    if "numpy" in sys.modules:  # a forked process would draw the same numbers as the one before it
        sys.modules["numpy"].random.seed()
    os.environ.update(variables)
    sys.argv = [*words]
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")
