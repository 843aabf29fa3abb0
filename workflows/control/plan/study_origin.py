"""The origin of a run's study: its file, and the git commit of the file's folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from trialfleet.workflows.study.frozen import FrozenStudy
from trialfleet.workflows.study.spec import Trainer

_SECONDS = 10  # limit for git: a checkout may be on a slow disk


def read_source(frozen: FrozenStudy) -> dict[str, Any]:
    """Return the study's `file`, its checkout's `commit`, and `dirty`; unknown items are left out.

    `dirty` is true if tracked files had uncommitted changes. A study made in Python has no file;
    then the commit is that of the trainer's folder.
    """
    trainer = frozen.study.trainer
    files = trainer.files if isinstance(trainer, Trainer) else []
    file = frozen.study_path
    found: dict[str, Any] = {"file": file} if file else {}
    folders = [Path(each).parent for each in (file, *files) if each]
    commit = folders and _run_git(folders[0], "rev-parse", "--verify", "HEAD")
    if not commit:
        return found
    found["commit"] = commit.strip()
    changed = _run_git(folders[0], "status", "--porcelain", "--untracked-files=no")
    return found if changed is None else {**found, "dirty": changed != ""}


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout
