"""The files from which a DAGMan that starts again learns what was done before.

If DAGMan can't use these files (docs/dagman-recovery.md), trialfleet moves them to another folder.
The next DAGMan then starts every DAG node again. No finished trial is trained again, because the
trial database has its result.
"""

from __future__ import annotations

import fcntl
import struct
import time
from pathlib import Path

from trialfleet.files import sync_all
from trialfleet.workflows.facts.run_folder.folder import DagFiles

# Python's fcntl has a call that takes this lock, but none that returns its holder.
_FLOCK = "hhqqi"  # struct flock of Linux's 64-bit ABIs: l_type, l_whence, l_start, l_len, l_pid


def is_locked(files: DagFiles) -> bool:
    """Return whether a living DAGMan holds the lock file of this DAG."""
    return lock_holder(files) is not None


def lock_holder(files: DagFiles) -> int | None:
    """Return the id of the process with the DAG's lock; 0 if unknown, None if no process has it."""
    try:
        with files.lock.open("rb") as lock:
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
            found = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, wanted))
    except FileNotFoundError:
        return None
    kind, *_, pid = found
    return None if kind == fcntl.F_UNLCK else max(0, int(pid))


def set_aside(*dags: DagFiles) -> list[Path]:
    """Move each DAG's recovery files to a new folder, and return the new folders.

    A DAG without recovery files gets no new folder.
    """
    name, folders, changed = time.strftime("%Y-%m-%dT%H-%M-%S"), [], []
    for files in dags:
        # The lock is moved last, so that after a crash the next call moves the rest.
        left = [path for path in (files.nodes_log, files.node_status, files.lock) if path.exists()]
        if left:
            folders.append(folder := files.aside / name)
            folder.mkdir(parents=True, exist_ok=True)
            for path in left:
                path.replace(folder / path.name)
            changed += [folder, files.dag.parent]
    sync_all(changed)
    return folders
