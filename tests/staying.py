"""Stands in for a job's agent: gives a trainer that stays one trial after another."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_folder(folder: Path, job: Path | None = None) -> Path:
    """Make a trial's folder, all but its trial.json.

    Args:
        folder: to make.
        job: what HTCondor brought to the job, which the trial sees by links.
    """
    for name in ("checkpoint", "model"):
        (folder / name).mkdir(parents=True)
    for name in ("result.json", "progress.jsonl", "stop.json", "out", "err"):
        (folder / name).touch()
    for source in job.iterdir() if job else ():
        if source.name != "__pycache__":
            (folder / source.name).symlink_to(source)
    return folder


class Stay:
    """A trainer's process, and the way to it; each trial has a folder that is set up already.

    Args:
        command: starts the trainer.
        folder: of its first trial.
        environment: beside the agent's own variables.
    """

    def __init__(
        self, command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.agent, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.agent.settimeout(120)
        known = {
            **os.environ,
            **(environment or {}),
            "TRIALFLEET_TRIAL": "trial.json",
            "TRIALFLEET_STAYS": str(theirs.fileno()),
        }
        with (folder / "out").open("ab") as out, (folder / "err").open("ab") as err, theirs:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=known,
                stdout=out,
                stderr=err,
                pass_fds=[theirs.fileno()],
            )

    def read_end(self) -> Any:
        """Return what the trainer says at a trial's end; None where its process has ended."""
        word = self.agent.recv(1 << 16)
        return json.loads(word) if word else None

    def give(self, folder: Path) -> None:
        """Give it the next trial."""
        names = {"trial": "trial.json", "out": "out", "err": "err"}
        order = {key: str(folder / name) for key, name in names.items()}
        self.agent.send(json.dumps(order).encode())

    def leave(self) -> int:
        """Hang up; return the code that its process ends with."""
        self.agent.close()
        return self.process.wait(120)

    def ended(self) -> int:
        """Return the code of a process that ended by itself, telling nothing."""
        assert self.read_end() is None
        self.agent.close()
        return self.process.wait(120)


def train_all(
    command: Sequence[str | Path],
    folders: Sequence[Path],
    environment: dict[str, str] | None = None,
) -> list[int]:
    """Train trials one after another, each in the same process where that stays; return the codes.

    As a job's agent does: where a process has ended, the next trial has a new one.
    """
    codes: list[int] = []
    stay: Stay | None = None
    for folder in folders:
        if stay is None:
            stay = Stay(command, folder, environment)
        else:
            stay.give(folder)
        if (end := stay.read_end()) is not None:
            codes.append(end["code"])
        else:
            codes.append(stay.leave())
            stay = None
    if stay is not None:
        assert stay.leave() == 0
    return codes
