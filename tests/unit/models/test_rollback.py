"""Rollback to the previous current model, and the history of current models."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trialfleet.errors import InputError
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.models import latest as latest_module
from trialfleet.workflows.control.models.latest import current_runs, promote, rollback
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.drift import drift
from trialfleet.workflows.facts.models.folders import display_name, reason_kept_out
from trialfleet.workflows.facts.models.history import changes
from trialfleet.workflows.formatting import rough_duration


@pytest.fixture
def models_folder(tmp_path: Path) -> Path:
    """A models folder with five models, none of them current yet."""
    models_folder = tmp_path / "models" / "demo" / "A"
    for number in range(1, 6):
        model = models_folder / f"r{number}"
        model.mkdir(parents=True)
        provenance = {"study": "demo", "run": model.name}
        (model / "provenance.json").write_text(json.dumps(provenance))
    return models_folder


def promoted(models_folder: Path, *runs: str) -> None:
    for run in runs:
        promote(models_folder / run)


def latest(models_folder: Path) -> str:
    return (models_folder / "latest").readlink().name


def test_rollback_makes_the_previous_current_model_current_again(
    models_folder: Path,
) -> None:
    promoted(models_folder, "r1", "r4")  # r2 and r3 were kept out by the gate
    assert rollback(models_folder) == ("r1", "r4")
    assert latest(models_folder) == "r1"


def test_two_rollbacks_go_two_models_back(models_folder: Path) -> None:
    promoted(models_folder, "r1", "r2", "r3")
    assert [rollback(models_folder)[0] for _ in range(2)] == ["r2", "r1"]
    with pytest.raises(InputError, match=r"there is no earlier model than r1 to go back to.*r2"):
        rollback(models_folder)
    promoted(models_folder, "r4")
    assert rollback(models_folder) == ("r1", "r4")  # not to r3, which was rolled back


def test_rollback_makes_a_named_run_current(models_folder: Path) -> None:
    promoted(models_folder, "r1", "r2", "r3")
    assert rollback(models_folder, "r1") == ("r1", "r3")
    assert rollback(models_folder, "r5") == ("r5", "r1")
    assert rollback(models_folder) == ("r1", "r5")
    with pytest.raises(InputError, match="no model of the run 'r9'; runs with a model: r1, r2"):
        rollback(models_folder, "r9")
    assert latest(models_folder) == "r1"


def test_rollback_skips_models_that_are_gone(models_folder: Path) -> None:
    promoted(models_folder, "r1", "r2", "r3")
    (models_folder / "r2" / "provenance.json").unlink()
    assert rollback(models_folder) == ("r1", "r3")


def test_rollback_without_a_current_model_is_refused(models_folder: Path) -> None:
    with pytest.raises(InputError, match="there is no model to roll back"):
        rollback(models_folder)


def test_a_latest_link_to_another_regions_model_is_ignored(
    models_folder: Path,
) -> None:
    promoted(models_folder, "r1", "r2")
    other = models_folder.with_name("B")
    (other / "r2").mkdir(parents=True)
    provenance = {"study": "demo", "run": "r2", "region": "B"}
    (other / "r2" / "provenance.json").write_text(json.dumps(provenance))
    (other / "latest").symlink_to("../A/r2")
    with pytest.raises(InputError, match=r"B' has no link latest"):
        rollback(other, "r2")
    assert display_name(other) == "demo/B"
    assert promote(other / "r2") is None
    assert (other / "latest").readlink() == Path("r2")


def test_a_folder_named_latest_is_refused_and_stays(models_folder: Path) -> None:
    (models_folder / "latest").mkdir()
    with pytest.raises(InputError, match=r"latest' is a folder and must be a link"):
        promote(models_folder / "r1")
    assert sorted(path.name for path in models_folder.iterdir() if path.name[0] == ".") == [".lock"]


def test_a_replaced_model_is_known_with_the_run_that_replaced_it(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")

    def why(run: str) -> str | None:
        return reason_kept_out({"path": str(models_folder / run)})

    promoted(models_folder, "r1", "r2")
    assert why("r2") is None
    rollback(models_folder)
    assert why("r2") == "the model of r1 was made current: rollback by anna"
    assert why("r1") is None
    promoted(models_folder, "r2")
    assert why("r2") is None
    assert why("r1") == "the model of r2 was made current: promote by anna"


def test_a_list_of_many_runs_parses_a_regions_history_once(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(models_folder, "r1", "r2", "r3", "r4")
    made: list[history.Change] = []
    change = history.Change

    def make(**each: Any) -> history.Change:
        made.append(change(**each))
        return made[-1]

    monkeypatch.setattr(history, "Change", make)
    for run in ("r1", "r2", "r3"):
        assert reason_kept_out({"path": str(models_folder / run)})
    assert len(made) == 4
    assert [each.run for each in changes(models_folder / "latest")] == ["r1", "r2", "r3", "r4"]
    rollback(models_folder)
    assert changes(models_folder / "latest")[-1].by == "rollback"


def test_models_shows_rolled_back_models_with_person_and_reason(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    promoted(models_folder, "r1", "r2", "r3")
    monkeypatch.chdir(models_folder.parents[2])
    for why in ([], ["--why", "bad\n labels"]):
        assert CliRunner().invoke(main, ["rollback", "A", *why]).exit_code == 0
    shown = CliRunner().invoke(main, ["models", "A"]).output
    states = [re.split(r"\s{2,}", line.strip())[-1] for line in shown.splitlines()[2:]]
    back = "rolled back by anna"
    assert states == ["current", f"{back}: bad labels", back, "not current", "not current"]
    listed = json.loads(CliRunner().invoke(main, ["models", "A", "--json"]).output)
    standing = [model["standing"] for model in listed[0]["models"]]
    assert standing == ["current", "rolled back", "rolled back", "never", "never"]


def test_regions_are_called_by_their_names_and_not_by_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, slug = "Côte d'Ivoire", "Cote-d-Ivoire-95ffc51d"
    origin = {"study": "demo", "region": name, "created": "2026-11-22T18:26:00+00:00"}
    for run in ("r1", "r2"):
        model = tmp_path / "models/demo" / slug / run
        model.mkdir(parents=True)
        as_of = {"date": "2026-11-21", "as_of": "2026-11-21T23:00:00+00:00"}
        (model / "provenance.json").write_text(json.dumps({**origin, "run": run, **as_of}))
        promote(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def shown(*words: str) -> str:
        done = CliRunner().invoke(main, list(words))
        assert slug not in done.output.replace(f"models/demo/{slug}", ""), done.output
        return done.output

    assert name in shown("models")
    assert "2026-11-22 18:26" in shown("models", f"demo/{name}"), "when it was planned"
    asked = datetime(2026, 11, 21, 23, tzinfo=UTC)
    age = rough_duration((datetime.now(UTC) - asked).total_seconds())
    assert f"  {age}  " in shown("models"), "as old as its day"
    (listed,) = json.loads(CliRunner().invoke(main, ["models", "--json"]).output)
    assert (listed["region"], listed["folder"]) == (name, f"models/demo/{slug}")
    assert f"{name} has no model of the run 'r9'" in shown("models", f"demo/{name}", "--card", "r9")
    assert "has no model of the run 'r9'" in shown("rollback", f"demo/{name}", "--to", "r9")
    assert shown("rollback", f"demo/{name}") == f"demo/{name}: latest is r1 (was r2)\n"
    output = shown("rollback", f"demo/{name}")
    assert f"demo/{name}: there is no earlier model than r1 to go back to" in output


def test_the_history_records_time_and_cause_of_each_change(models_folder: Path) -> None:
    promoted(models_folder, "r1", "r2")
    rollback(models_folder)
    history = [
        (change.previous, change.run, change.by) for change in changes(models_folder / "latest")
    ]
    assert history == [(None, "r1", "promote"), ("r1", "r2", "promote"), ("r2", "r1", "rollback")]
    assert all(change.time for change in changes(models_folder / "latest"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"changes": [{"run": 1}]}', None])
def test_the_link_latest_decides_if_the_history_is_lost(
    models_folder: Path, content: str | None
) -> None:
    promoted(models_folder, "r1", "r2")
    if content is None:
        (models_folder / ".history.json").unlink()  # as of a release that wrote none
        assert current_runs(models_folder / "latest") == ["r2"]
    else:
        (models_folder / ".history.json").write_text(content)
        with pytest.raises(OSError, match="so the earlier current models are unknown"):
            rollback(models_folder)
    promoted(models_folder, "r3")
    if content is not None:
        assert (models_folder / ".history.json.unreadable").read_text() == content
    assert rollback(models_folder) == ("r2", "r3")


def test_a_link_that_was_moved_by_hand_is_in_the_history(models_folder: Path) -> None:
    promoted(models_folder, "r1", "r2")
    (models_folder / "latest").unlink()
    (models_folder / "latest").symlink_to("r4")
    assert current_runs(models_folder / "latest") == ["r1", "r2", "r4"]
    assert rollback(models_folder) == ("r2", "r4")


@pytest.mark.parametrize("change", [rollback, lambda models_folder: promote(models_folder / "r4")])
def test_a_change_that_was_noted_and_not_made_never_took_place(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    promoted(models_folder, "r1", "r2", "r3")
    with monkeypatch.context() as patch:
        patch.setattr(
            latest_module, "set_link", lambda *_: (_ for _ in ()).throw(OSError("killed"))
        )
        with pytest.raises(OSError, match="killed"):
            change(models_folder)
    assert latest(models_folder) == "r3"
    assert current_runs(models_folder / "latest") == ["r1", "r2", "r3"]
    assert rollback(models_folder) == ("r2", "r3")


def test_the_history_is_limited_in_length(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_KEPT", 4)
    promoted(models_folder, *["r1", "r2"] * 5)
    assert len(changes(models_folder / "latest")) == 4


def test_the_rollback_command_accepts_region_names_and_paths(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models_folder.parents[2])
    promoted(models_folder, "r1", "r2")
    for name in ("A", "demo/A", "models/demo/A"):
        done = CliRunner().invoke(main, ["rollback", name])
        assert (done.exit_code, done.output) == (0, "demo/A: latest is r1 (was r2)\n")
        done = CliRunner().invoke(main, ["rollback", name, "--to", "r2"])
        assert (done.exit_code, done.output) == (0, "demo/A: latest is r2 (was r1)\n")
    assert CliRunner().invoke(main, ["rollback", "A", "--study", "other"]).exit_code == 2


KILLED = """
import os, sys
from pathlib import Path
from tests.killed_child import status_of
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.control.models.latest import current_runs, rollback

models_folder, times = Path(sys.argv[1]), int(sys.argv[2])
link = models_folder / "latest"
changes = {
    "r1": (lambda: rollback(models_folder, "r1"), ["r1"]),
    "r2": (lambda: rollback(models_folder), ["r1", "r2"]),
    "r4": (lambda: promote(models_folder / "r4"), ["r1", "r2", "r3", "r4"]),
}
died = {run: [0, 0] for run in changes}  # before and behind the switch
for number in range(times):
    run, (change, then) = list(changes.items())[number % 3]
    for file in (models_folder / ".history.json", link):  # everything begins again
        file.unlink(missing_ok=True)
    for each in ("r1", "r2", "r3"):
        promote(models_folder / each)
    calls = 1 + number // 3 % 40
    was_killed = os.WIFSIGNALED(status_of(change, calls))
    now, stack = link.readlink().name, current_runs(link)
    assert (now, stack) in [("r3", ["r1", "r2", "r3"]), (run, then)], (number, now, stack)
    assert (link / "provenance.json").exists()
    if was_killed:
        died[run][now == run] += 1
    if now != run:
        change()
    assert (link.readlink().name, current_runs(link)) == (run, then), number
known = {".lock", ".history.json", "latest", *(f"r{i}" for i in range(1, 6))}
assert not set(os.listdir(models_folder)) - known, os.listdir(models_folder)
print(died)
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", [30, pytest.param(300, marks=pytest.mark.thorough)])
def test_kill_9_leaves_latest_and_the_history_consistent(models_folder: Path, times: int) -> None:
    """Each of three changes in turn: back two, back one, forth."""
    command = [sys.executable, "-c", KILLED, str(models_folder), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    if times > 100:  # a death at every call of the system, before and behind the switch
        died = ast.literal_eval(done.stdout)
        assert all(before > 5 and behind > 0 for before, behind in died.values()), died


# Drift


def test_a_value_outside_of_its_own_past_has_drifted() -> None:
    past = [0.80, 0.81, 0.79, 0.80, 0.82]
    assert not drift([*past, 0.78])
    # 0.8 ± 3 * 1.4826 * 0.01
    assert drift([*past, 0.75]) == "0.75, outside its past range, 0.7555 to 0.8445"
    assert drift([*past, 0.85])  # better than it can be is odd, too


def test_too_few_past_values_report_no_drift() -> None:
    assert not drift([])
    assert not drift([0.8, 0.8, 0.8, 0.8, 0.1])


def test_odd_days_in_the_past_do_not_hide_a_drift() -> None:
    assert drift([0.80, 0.81, 0.10, 0.79, 0.80, 0.82, 0.60])


def test_a_constant_value_drifts_by_any_change_but_rounding() -> None:
    assert not drift([0.8] * 5 + [0.8 + 1e-15])
    assert drift([0.8] * 5 + [0.79])


def test_promote_of_several_models_names_those_that_cannot_be_promoted(
    models_folder: Path,
) -> None:
    others = [models_folder.with_name(name) for name in ("B", "C", "D")]
    for folder in others:
        shutil.copytree(models_folder, folder)
    broken, gone, good = others
    (broken / "latest").mkdir()
    shutil.rmtree(gone / "r1")
    named = [str(folder / "r1") for folder in (models_folder, *others)]
    done = CliRunner().invoke(main, ["promote", *named])
    assert done.exit_code == 1
    assert [latest(folder) for folder in (models_folder, good)] == ["r1", "r1"]
    first, second = done.stderr.splitlines()
    assert first.startswith("not promoted: demo/B: ")
    assert "must be a link: move the folder away" in first
    assert second.startswith("not promoted: demo/C: ")
    assert "is not a run's published model" in second
    assert "Traceback" not in done.output
    alone = CliRunner().invoke(main, ["promote", named[1]])
    assert alone.exit_code == 2
