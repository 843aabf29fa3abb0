"""Ranks of a gang as agents start them: forked from a process that has imported torch alone."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.ports import reserved_port

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch.distributed"])


def start(folders: Sequence[Path], program: str = "train.py") -> list[ForkServerProcess]:
    """Start a program as the ranks of one gang, each in a sandbox; what it says goes to `err`."""
    shared = {
        "WORLD_SIZE": str(len(folders)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(reserved_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TRIALFLEET_GENERATION": "1",
        "TRIALFLEET_TRIAL": "trial.json",
    }
    ranks = []
    for rank, folder in enumerate(folders):
        variables = {**shared, "RANK": str(rank)}
        ranks.append(_SERVER.Process(target=_be_rank, args=(folder, variables, program)))
        ranks[-1].start()
    return ranks


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
