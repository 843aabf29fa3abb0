"""Files that survive a power failure: each is synced, or their filesystem is synced once."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import files
from trialfleet.infra.pool import schedd
from trialfleet.workflows.control.dagman import repair
from trialfleet.workflows.facts.run_folder.folder import RunFolder


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The calls of fsync and syncfs, which are made as well, with the path of each."""
    calls: list[tuple[str, str]] = []

    def note(call: str, descriptor: int) -> None:
        calls.append((call, str(Path(f"/proc/self/fd/{descriptor}").readlink())))

    fsync, library = os.fsync, ctypes.CDLL(None, use_errno=True)

    def noted_fsync(descriptor: int) -> None:
        note("fsync", descriptor)
        fsync(descriptor)

    class NotedLibrary:
        @staticmethod
        def syncfs(descriptor: int) -> int:
            note("syncfs", descriptor)
            result: int = library.syncfs(descriptor)
            return result

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: NotedLibrary)
    return calls


def tree(root: Path, count: int) -> list[Path]:
    (root / "a").mkdir()
    made = [root / "a" / str(number) for number in range(count)]
    for path in made:
        path.write_text("x")
    return [*made, root / "a", root]


def test_each_file_and_folder_of_a_small_tree_is_synced(
    tmp_path: Path, synced: list[tuple[str, str]]
) -> None:
    made = tree(tmp_path, 3)
    files.sync_tree(tmp_path)
    assert sorted(synced) == sorted(("fsync", str(path)) for path in made)


def test_a_large_tree_is_synced_with_one_call(
    tmp_path: Path, synced: list[tuple[str, str]]
) -> None:
    tree(tmp_path, 100)
    files.sync_tree(tmp_path)
    [(call, path)] = synced
    assert call == "syncfs"
    assert Path(path).is_relative_to(tmp_path)


def test_a_failed_syncfs_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = tree(tmp_path, 100)
    library = ctypes.CDLL(None, use_errno=True)

    class ClosedFirst:
        @staticmethod
        def syncfs(_descriptor: int) -> int:
            result: int = library.syncfs(-1)  # fails as a call for a closed file does
            return result

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: ClosedFirst)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.sync_all(paths)


def test_a_planned_run_is_synced_before_it_gets_its_name(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    sync_tree = files.sync_tree

    def noted(folder: Path) -> None:
        assert (folder / "study.dag").exists()
        seen.append(folder)
        sync_tree(folder)

    monkeypatch.setattr("trialfleet.workflows.control.plan.run_folder_writer.sync_tree", noted)
    run: Any = make_run()
    [folder] = seen
    assert folder.name.startswith(".plan-")
    assert not folder.exists()
    assert (run.folder / "study.dag").exists()


@pytest.mark.usefixtures("empty_queue")
def test_a_stop_of_many_regions_syncs_their_files_with_one_call(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, synced: list[tuple[str, str]]
) -> None:
    run = RunFolder(make_run(regions=[f"R{number}" for number in range(20)]).folder)
    for dag in run.all_dags():
        dag.lock.touch()
    monkeypatch.setattr(schedd, "apply_action", lambda *_: 0)
    monkeypatch.setattr(schedd, "query", lambda *_: [])
    synced.clear()
    repair.stop(run)
    assert [call for call, _ in synced if call == "syncfs"] == ["syncfs"]
    of_regions = [path for call, path in synced if call == "fsync" and "/regions/" in path]
    assert of_regions == []
    assert not any(dag.lock.exists() for dag in run.all_dags())
