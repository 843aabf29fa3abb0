"""A disk that becomes full during a run: which actions are repeated, and which are not."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from trialfleet.files import write_json
from trialfleet.workflows.control.scripts import publish_program
from trialfleet.workflows.facts.disk_space import retry_while_disk_full
from trialfleet.workflows.facts.run_folder.folder import RunFolder


class Full:
    """An action that meets a full disk a few times."""

    def __init__(self, times: int, number: int = errno.ENOSPC) -> None:
        self.left = times
        self.number = number

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise OSError(self.number, "No space left on device", "model")
        return "done"


def test_an_action_is_repeated_until_there_is_space() -> None:
    messages: list[str] = []
    assert retry_while_disk_full(Full(3), messages.append, pause=0) == "done"
    assert len(messages) == 3
    assert "No space left" in messages[0]


def test_another_error_is_not_repeated() -> None:
    with pytest.raises(PermissionError):
        retry_while_disk_full(Full(3, errno.EACCES), lambda _: None, pause=0)


def test_a_model_that_meets_a_full_disk_does_not_stop_its_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Full(1)
    ungated = SimpleNamespace(study=SimpleNamespace(gate=None))
    monkeypatch.setattr(publish_program, "load_frozen", lambda _: ungated)
    monkeypatch.setattr(publish_program, "publish", lambda *_: full())
    folder = RunFolder(tmp_path)
    folder.region("A").best.root.mkdir(parents=True)
    for file in (folder.inputs, folder.region("A").inputs):
        write_json(file, {"folders": [], "files": []})
    with pytest.raises(OSError, match="No space left"):
        publish_program.publish_region(folder, "A")
    assert not folder.region("A").stopped.exists()
