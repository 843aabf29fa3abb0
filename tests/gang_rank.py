"""A rank of a gang as its agent starts it: forked from a process that has imported torch alone."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch.distributed"])


def start(
    folder: Path, variables: Mapping[str, str], program: str = "train.py"
) -> ForkServerProcess:
    """Start a program in a sandbox; what it says goes to `err` there."""
    process = _SERVER.Process(target=_be_rank, args=(folder, dict(variables), program))
    process.start()
    return process


def _be_rank(folder: Path, variables: Mapping[str, str], program: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(folder)
    said = os.open("err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.environ.update(variables)
    sys.path[:0] = [str(folder)]
    runpy.run_path(program, run_name="__main__")
