"""The unpacking of the package in which an agent sent a trial's files to the access point."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from trialfleet import untrusted_files
from trialfleet.files import sync, sync_all
from trialfleet.nodes import ENDED
from trialfleet.nodes.job.pack_and_unpack import unpack_file
from trialfleet.optimizer.service_client import FULL
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

_RESULT = "result.json"  # written after the files that it describes; the mark of the end is last
_OUTPUT = ("out", "err", "progress.jsonl")  # not synced: the trial database has the reports
_MAY_LEAVE = (*_OUTPUT, "model", "losses", _RESULT, ENDED)


def unpack_result(place: TrialFolder, package: Path, max_bytes: float = math.inf) -> None:
    """Move a trial's files from `package` into the trial's folder, and remove the package.

    If the package is damaged, or if its files have more than `max_bytes` bytes in total, the trial
    gets a failed result with the reason. A missing package changes nothing. If the files can't be
    moved, for example because the disk is full, OSError is raised, and the package stays.
    """
    if not os.path.lexists(package):
        return
    beside = place.root / ".unpacked"  # out of the job's reach, so that the files stay unchanged
    untrusted_files.make_empty(beside)
    try:
        with untrusted_files.open_regular(package, place.node_root) as file:
            unpack_file(file, beside, max_bytes)
    except OSError as error:
        if error.errno in FULL:
            raise
        words = f"its result can't be used: {error}"
        untrusted_files.write_json(place.result, {"status": "failed", "error": words})
        _put(beside, place.root, (*_OUTPUT, ENDED))
    else:
        _put(beside, place.root, _MAY_LEAVE)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    untrusted_files.remove(package)


def _put(beside: Path, root: Path, names: Iterable[str]) -> None:
    paths = beside.rglob("*")
    sync_all([each for each in paths if each.parent != beside or each.name not in _OUTPUT])
    for name in names:
        if (left := beside / name).exists():
            if untrusted_files.is_folder(root / name) or left.is_dir():
                untrusted_files.remove(root / name)
            left.replace(root / name)
    sync(root)
