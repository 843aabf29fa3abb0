"""The key `keep`: published models stay by count and by age; nothing else is removed."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.models.test_publish import best, models_folder_of, names, publish_on, study
from trialfleet.errors import InputError
from trialfleet.workflows.control.models import publication as publish_module
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.control.models.retention import models_to_remove
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.study.export import Keep
from trialfleet.workflows.study.frozen import FrozenStudy, dump_frozen
from trialfleet.workflows.study.spec import Study

__all__ = ["best", "study"]  # fixtures

NOW = datetime.now(UTC)
AGES = {f"r{age}": NOW - timedelta(days=age) for age in range(6)}  # r0 is of today


def with_keep(study: Study, **keep: float) -> Study:
    return study.model_copy(update={"keep": Keep.model_validate(keep)})


@pytest.mark.parametrize(
    ("keep", "going"),
    [
        ({"count": 2}, ["r5", "r4", "r3", "r2"]),
        ({"days": 3.5}, ["r5", "r4"]),
        ({"count": 2, "days": 3.5}, ["r5", "r4"]),  # a model that either rule keeps stays
        ({"count": 5, "days": 0.5}, ["r5"]),
        ({"count": 9}, []),
    ],
)
def test_the_newest_and_the_youngest_stay(keep: dict[str, float], going: list[str]) -> None:
    assert models_to_remove(AGES, Keep.model_validate(keep), NOW, ()) == going


def test_a_protected_model_stays_and_does_not_count_as_one_of_the_newest() -> None:
    assert models_to_remove(AGES, Keep(count=2), NOW, {"r5"}) == ["r4", "r3", "r2"]


def test_a_publication_removes_what_is_not_kept_and_says_so(
    study: Study, best: TrialFolder
) -> None:
    thrifty = with_keep(study, count=2)
    for age in (5, 4, 3):
        publish_on(AGES[f"r{age}"], f"r{age}", study, best)
    last = publish_on(AGES["r2"], "r2", thrifty, best)
    assert names(models_folder_of(study)) == ["latest", "r2", "r3"]
    assert last.removed == "removed, by keep: r5, r4"
    assert publish_on(AGES["r2"], "r2", thrifty, best).removed is None


def test_no_model_is_removed_while_the_previous_one_is_unknown(
    study: Study, best: TrialFolder
) -> None:
    for age in (5, 4, 3):
        publish_on(AGES[f"r{age}"], f"r{age}", study, best)
    rollback(models_folder_of(study), "r5")
    (models_folder_of(study) / ".history.json").write_text("{")
    thrifty = with_keep(study, count=1)
    last = publish_on(AGES["r5"] - timedelta(days=9), "made-up", thrifty, best)
    assert last.removed
    assert "models beyond the limits of `keep` can't be removed: " in last.removed
    assert names(models_folder_of(study)) == ["latest", "made-up", "r3", "r4", "r5"]


def test_champion_previous_champion_and_unknown_models_stay_however_old(
    study: Study, best: TrialFolder
) -> None:
    thrifty, folder = with_keep(study, count=1), models_folder_of(study)
    for age in (5, 4, 3):
        publish_on(AGES[f"r{age}"], f"r{age}", study, best)
    rollback(folder, "r5")
    promote(folder / "r4")  # the current model; before it r5
    (folder / "notes").mkdir()  # a person's
    (folder / "notes" / "provenance.json").write_text('{"run": "another"}')
    publish_on(AGES["r2"] - timedelta(days=9), "made-up", thrifty, best)
    assert names(folder) == ["latest", "made-up", "notes", "r3", "r4", "r5"]
    assert rollback(folder) == ("r5", "r4")


def test_a_failed_removal_does_not_undo_the_publication(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[str]:
        raise OSError("no permission")

    monkeypatch.setattr(publish_module, "remove_superfluous", refuse)
    published = publish_on(NOW, "r0", with_keep(study, count=1), best)
    assert published.path.is_dir()
    assert "no permission" in (published.removed or "")


KILLED = """
import os, sys
from pathlib import Path
from tests.killed_child import status_of
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.control.models.publication import publish
from trialfleet.workflows.study.frozen import load_frozen

files, best = [Path(file) for file in sys.argv[2:]], TrialFolder(Path(sys.argv[1]))
models_folder = Path(load_frozen(files[0]).study.publish) / "demo" / "A"
whole = {"deep", "metrics.json", "provenance.json", "card.json"}

def publish_last():
    publish(load_frozen(files[-1]), "A", best)

for file in files[:-1]:
    publish(load_frozen(file), "A", best)
os.rename(models_folder, models_folder.with_name("before"))
kills = 0
while True:
    os.system(f"cd '{models_folder.parent}'; rm -rf A; cp -a before A")
    if not os.WIFSIGNALED(status_of(publish_last, kills + 1)):
        break
    kills += 1
    found = [name for name in os.listdir(models_folder) if name[0] != "." and name != "latest"]
    assert "r1" in found, (kills, found)  # before, and the way back
    for name in found:
        assert set(os.listdir(models_folder / name)) == whole, (kills, name)
    assert status_of(publish_last, 0) == 0, kills
    left = set(os.listdir(models_folder))
    assert left == {".lock", ".history.json", "latest", "r0", "r1"}, (kills, left)
print(kills)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_kill_9_leaves_complete_models_and_the_next_publication_cleans_up(
    study: Study, best: TrialFolder, tmp_path: Path
) -> None:
    files = []
    for age in (5, 2, 1, 0):
        kept = with_keep(study, count=2 if age == 0 else 9)
        frozen = FrozenStudy(run=f"r{age}", folder="/r", created=AGES[f"r{age}"], study=kept)
        files.append(tmp_path / f"r{age}.yaml")
        files[-1].write_text(dump_frozen(frozen))
    command = [sys.executable, "-c", KILLED, str(best.root), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40, "every call was a place of a death"


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({}, "needs count, days or both"),
        ({"count": 0}, "greater than"),
        ({"age": 3}, "unknown key"),
    ],
)
def test_an_empty_or_invalid_keep_is_refused(keep: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Keep.model_validate(keep)


def test_keep_without_published_models_is_refused(study: Study, tmp_path: Path) -> None:
    tree = study.model_dump(exclude_none=True) | {"publish": "none", "keep": {"count": 3}}
    with pytest.raises((ValueError, InputError), match="`publish` is `none`"):
        Study.model_validate(tree)
