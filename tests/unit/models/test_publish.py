"""Publishing: the model is copied completely, `latest` is switched, previous models stay."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.workflows.control.models import latest as latest_module
from trialfleet.workflows.control.models import publication as publish_module
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.control.models.publication import Publication, publish
from trialfleet.workflows.facts.models.folders import current_model, previous_model
from trialfleet.workflows.facts.models.listing import list_published_models
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import FrozenStudy, dump_frozen, load_frozen
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.terminal.model_tables import champions_table, history_table

RESULT = '{"status": "complete", "metrics": {"loss": 0.25}, "device": "cpu", "seconds": 1.5}'

DATA = [{"path": "/data/A.csv", "sha256": "5e884898", "bytes": 4}]


def provenance_of(published: Path) -> Any:
    return json.loads((published / "provenance.json").read_text())


def drawn(view: RenderableType) -> str:
    screen = Console(width=400, record=True)
    screen.print(view)
    return screen.export_text()


HIDDEN = {".lock", ".history.json"}
# In the past by every clock: a future time is invalid.
MONDAY = datetime(2024, 11, 25, 6, tzinfo=UTC)


def publish_on(created: datetime, run: str, study: Study, best: TrialFolder) -> Publication:
    frozen = FrozenStudy(run=run, folder="/runs/demo", created=created, study=study)
    return publish(frozen, "A", best)


def publish_as(run: str, study: Study, best: TrialFolder) -> Path:
    """Publish as the run r1, of Monday, or r2, of Tuesday."""
    published = publish_on(MONDAY + timedelta(days=int(run[1:]) - 1), run, study, best)
    return published.path


def models_folder_of(study: Study) -> Path:
    return Path(study.publish) / "demo" / "A"


def latest(study: Study) -> str:
    return (models_folder_of(study) / "latest").readlink().name


def names(models_folder: Path) -> list[str]:
    return sorted(path.name for path in models_folder.iterdir() if path.name not in HIDDEN)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "A.csv").write_text("1,2\n")
    return Study.model_validate(
        {
            "name": "demo",
            "regions": ["A"],
            "data": "A.csv",
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "trainer": {"command": ["sh"]},
            "accelerator": "cpu",
        }
    ).resolve(tmp_path)


@pytest.fixture
def best(tmp_path: Path) -> TrialFolder:
    best = TrialFolder(tmp_path / "best")
    (best.model / "deep").mkdir(parents=True)
    (best.model / "deep" / "weights").write_text("w1")
    best.trial_json.write_text(
        '{"region": "A", "trial": 3, "params": {"x": 0.5}, "seed": 7, "objective": {}}'
    )
    best.result.write_text(RESULT)
    write_json(best.trained_on, {"data": DATA, "code": []})
    return best


def test_model_metrics_and_provenance_are_published(study: Study, best: TrialFolder) -> None:
    published = publish_as("r1", study, best)
    assert published == Path(study.publish) / "demo" / "A" / "r1"
    assert (published / "deep" / "weights").read_text() == "w1"
    assert json.loads((published / "metrics.json").read_text()) == {"loss": 0.25}
    provenance = provenance_of(published)
    assert (provenance["params"], provenance["seed"]) == ({"x": 0.5}, 7)
    assert provenance["data"] == DATA


def test_models_shows_the_metric_by_which_models_are_compared(
    study: Study, best: TrialFolder
) -> None:
    result = json.loads(RESULT) | {"metrics": {"loss": 0.25, "test": 0.5}}
    best.result.write_text(json.dumps(result))
    trial = json.loads(best.trial_json.read_text())
    write_json(best.trial_json, trial | {"objective": study.objective.model_dump()})
    tested = study.model_copy(update={"report_metric": "test"})
    published = publish_as("r1", tested, best)
    models = list_published_models(published.parent)
    for view in (history_table(models), champions_table({published.parent: models})):
        assert "test 0.5" in (shown := drawn(view))
        assert "loss 0.25" not in shown


def test_latest_is_switched_and_the_previous_model_stays(study: Study, best: TrialFolder) -> None:
    first = publish_as("r1", study, best)
    (best.model / "deep" / "weights").write_text("w2")
    publish_as("r2", study, best)
    latest = models_folder_of(study) / "latest"
    assert (latest / "deep" / "weights").read_text() == "w2"
    assert (first / "deep" / "weights").read_text() == "w1"


def test_a_run_that_is_resumed_late_publishes_and_leaves_latest_where_it_is(
    study: Study, best: TrialFolder
) -> None:
    tuesday = MONDAY + timedelta(days=1)
    publish_on(tuesday, "a", study, best)  # ids say nothing: people choose them
    late = publish_on(MONDAY, "z", study, best)
    assert provenance_of(late.path)["created"] == "2024-11-25T06:00:00+00:00"
    assert latest(study) == "a"
    assert late.not_latest
    assert late.not_latest.startswith("latest stays with a, which was planned later")
    assert f"trialfleet promote {late.path}" in late.not_latest
    assert publish_on(tuesday + timedelta(seconds=1), "b", study, best).not_latest is None
    assert latest(study) == "b"


def test_a_run_that_makes_up_for_an_earlier_day_leaves_latest_unchanged(
    study: Study, best: TrialFolder
) -> None:
    friday = MONDAY - timedelta(days=3)
    its_day = RunsDay(date=MONDAY.date())
    monday = FrozenStudy(run="monday", folder="/r", created=MONDAY, day=its_day, study=study)
    publish(monday, "A", best)
    day = RunsDay(date=friday.date())
    later = MONDAY + timedelta(days=1)
    frozen = FrozenStudy(run="friday", folder="/r", created=later, day=day, study=study)
    made_up = publish(frozen, "A", best)
    assert latest(study) == "monday"
    assert f"stays with monday, which is of a later day, {MONDAY.date()}; to" in (
        made_up.not_latest or ""
    )
    assert provenance_of(made_up.path)["date"] == str(friday.date())
    today = FrozenStudy(
        run="tuesday", folder="/r", created=later, day=RunsDay(date=later.date()), study=study
    )
    assert publish(today, "A", best).not_latest is None
    assert today.as_of == later  # its day isn't over


def test_a_run_for_a_missed_day_does_not_replace_a_newer_run_without_a_day(
    study: Study, best: TrialFolder
) -> None:
    """It was planned later than that run; the age of its data decides."""
    publish_on(MONDAY, "by-hand", study, best)
    day = RunsDay(date=MONDAY.date() - timedelta(days=1))
    later = MONDAY + timedelta(minutes=10)
    frozen = FrozenStudy(run=str(day.date), folder="/r", created=later, day=day, study=study)
    made_up = publish(frozen, "A", best)
    assert (made_up.not_latest or "").startswith(
        f"latest stays with by-hand: {day.date} is of an earlier day; to change that"
    )
    frozen = FrozenStudy(run="made-up", folder="/r", created=later, day=day, study=study)
    assert f"made-up is of an earlier day, {day.date}; to" in (
        publish(frozen, "A", best).not_latest or ""
    )
    models = {models_folder_of(study): list_published_models(models_folder_of(study))}
    view = drawn(champions_table(models))
    assert f"current; of an earlier day: {day.date}: not current" in view
    assert "planned later" not in view


def test_the_reason_names_the_later_day_and_not_the_time_of_planning(
    study: Study, best: TrialFolder
) -> None:
    for days in (1, 0):
        date = MONDAY.date() - timedelta(days=5 - days)
        created = MONDAY + timedelta(minutes=days)
        frozen = FrozenStudy(
            run=f"d{days}", folder="/r", created=created, day=RunsDay(date=date), study=study
        )
        made = publish(frozen, "A", best)
    assert "stays with d1, which is of a later day, 2024-11-21; to" in (made.not_latest or "")


def test_the_reason_names_the_current_model_if_it_is_newer_itself(
    study: Study, best: TrialFolder
) -> None:
    days = [MONDAY + timedelta(days=i) for i in range(3)]
    for i in (1, 2):
        publish_on(days[i], f"day{i}", study, best)
    promote(models_folder_of(study) / "day1")
    late = publish_on(days[0], "day0", study, best)
    assert "stays with day1, which was planned later" in (late.not_latest or "")


def test_a_model_promoted_by_a_person_stays_until_a_newer_run_publishes(
    study: Study, best: TrialFolder
) -> None:
    days = [MONDAY + timedelta(days=i) for i in range(5)]
    for i in (0, 2, 3):
        publish_on(days[i], f"day{i}", study, best)
    assert promote(models_folder_of(study) / "day0") == "day3"
    assert latest(study) == "day0"
    late = publish_on(days[1], "day1", study, best)  # newer than day0, older than the failed one
    assert "stays with day0: day3 was planned later" in (late.not_latest or "")
    assert latest(study) == "day0"
    publish_on(days[4], "day4", study, best)
    assert latest(study) == "day4"


def test_republishing_a_promoted_model_does_not_report_it_as_kept_back(
    study: Study, best: TrialFolder
) -> None:
    publish_on(MONDAY + timedelta(days=1), "tuesday", study, best)
    late = publish_on(MONDAY, "monday", study, best)
    promote(late.path)
    assert publish_on(MONDAY, "monday", study, best).not_latest is None  # DAGMan ran it again
    assert latest(study) == "monday"


@pytest.mark.parametrize("how", [rollback, lambda folder: promote(folder / "monday")])
def test_a_publication_that_is_repeated_leaves_what_a_person_chose_meanwhile(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    publish_on(MONDAY, "monday", study, best)
    tuesday = MONDAY + timedelta(days=1)
    publish_on(tuesday, "tuesday", study, best)  # killed before it wrote published.json
    how(models_folder_of(study))
    again = publish_on(tuesday, "tuesday", study, best)
    assert latest(study) == "monday"
    assert re.match(
        r"latest stays with monday, which replaced tuesday \((promote|rollback) by anna\); to",
        again.not_latest or "",
    )
    assert f"trialfleet promote {again.path}" in (again.not_latest or "")


def test_a_model_that_was_removed_meanwhile_is_not_made_current(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_on(MONDAY, "monday", study, best)
    publish_on(MONDAY + timedelta(days=1), "tuesday", study, best)
    models = models_folder_of(study)
    lock = latest_module.models_lock

    @contextmanager
    def held_by_a_publication(folder: Path) -> Iterator[None]:
        with lock(folder):
            shutil.rmtree(models / "monday")
            yield

    monkeypatch.setattr(latest_module, "models_lock", held_by_a_publication)
    with pytest.raises(InputError, match="monday"):
        promote(models / "monday")
    assert latest(study) == "tuesday"


@pytest.mark.parametrize("by_a_person", [False, True])
def test_a_model_of_a_clock_that_was_set_ahead_does_not_stay_the_latest_for_years(
    study: Study, best: TrialFolder, *, by_a_person: bool
) -> None:
    publish_on(MONDAY, "monday", study, best)
    publish_on(datetime.now(UTC) + timedelta(days=2000), "ahead", study, best)
    assert latest(study) == "ahead"
    if by_a_person:
        promote(models_folder_of(study) / "monday")
    assert publish_on(MONDAY + timedelta(days=1), "tuesday", study, best).not_latest is None
    assert latest(study) == "tuesday"
    late = publish_on(MONDAY - timedelta(days=1), "sunday", study, best)
    assert "stays with tuesday, which was planned later" in (late.not_latest or "")


def test_the_previous_model_is_the_newest_that_was_planned_earlier(
    study: Study, best: TrialFolder
) -> None:
    first, third = publish_as("r1", study, best), publish_as("r3", study, best)
    second = publish_as("r2", study, best)
    (second.parent / ".publish-x").mkdir()  # of one that was killed
    (second.parent / ".publish-x" / "provenance.json").write_text(json.dumps(provenance_of(second)))
    assert [previous_model(each) for each in (first, second, third)] == [None, first, second]
    assert {current_model(each) for each in (first, second, third)} == {third}
    promote(first)
    assert current_model(third) == first
    (first.parent / "latest").unlink()
    assert current_model(third) is None


@pytest.mark.parametrize("provenance", ["{}", "[]", "no JSON", '{"created": 3}', None])
def test_a_new_model_replaces_models_of_unknown_age_and_a_broken_link(
    study: Study, best: TrialFolder, provenance: str | None
) -> None:
    newer = publish_on(MONDAY + timedelta(days=1), "newer", study, best).path
    if provenance is None:
        shutil.rmtree(newer)
    else:
        (newer / "provenance.json").write_text(provenance)
    assert publish_on(MONDAY, "older", study, best).not_latest is None
    assert latest(study) == "older"


@pytest.mark.parametrize("name", ["latest", "nowhere", "."])
def test_only_what_a_run_published_is_promoted(study: Study, best: TrialFolder, name: str) -> None:
    publish_as("r1", study, best)
    with pytest.raises(InputError, match="is not a run's published model"):
        promote(models_folder_of(study) / name)
    assert latest(study) == "r1"


PUBLISH = """
import sys, time
from pathlib import Path
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.control.models.publication import publish
from trialfleet.workflows.study.frozen import load_frozen

frozen = load_frozen(Path(sys.argv[1]))
sys.stdin.readline()
publish(frozen, "A", TrialFolder(Path(sys.argv[2])))
"""


@pytest.mark.slow
def test_concurrent_publications_keep_all_models_and_make_the_newest_current(
    study: Study, best: TrialFolder, tmp_path: Path
) -> None:
    (best.model / "large").write_bytes(b"x" * 10_000_000)
    publishing = []
    for i in range(6):
        created = MONDAY + timedelta(days=-i)
        frozen = FrozenStudy(run=f"r{i}", folder="/runs/demo", created=created, study=study)
        path = tmp_path / f"r{i}.yaml"
        path.write_text(dump_frozen(frozen))
        assert load_frozen(path).created == created
        command = [sys.executable, "-c", PUBLISH, str(path), str(best.root)]
        publishing.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    for process in publishing:
        process.communicate(b"go\n")
    assert [process.returncode for process in publishing] == [0] * 6
    assert names(models_folder_of(study)) == ["latest", *(f"r{i}" for i in range(6))]
    assert latest(study) == "r0"


@pytest.mark.slow
def test_no_other_run_publishes_between_the_check_and_the_switch_of_latest(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, has_looked, may_switch = latest_module.set_link, threading.Event(), threading.Event()

    def switch_late(link: Path, target: str) -> None:
        if target == "r1":
            has_looked.set()
            assert may_switch.wait(60)
        switch(link, target)

    monkeypatch.setattr(latest_module, "set_link", switch_late)
    monday, tuesday = (
        threading.Thread(target=publish_as, args=(run, study, best)) for run in ("r1", "r2")
    )
    monday.start()
    assert has_looked.wait(60)
    tuesday.start()
    tuesday.join(1)  # it would be through by now, and Monday's switch would undo its own
    may_switch.set()
    monday.join()
    tuesday.join()
    assert latest(study) == "r2"


KILLED = """
import os, sys
from pathlib import Path
from tests.killed_child import status_of
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.control.models.publication import publish
from trialfleet.workflows.study.frozen import load_frozen

monday, tuesday, best = Path(sys.argv[1]), Path(sys.argv[2]), TrialFolder(Path(sys.argv[3]))
models_folder = Path(load_frozen(monday).study.publish) / "demo" / "A"
whole = {"deep", "metrics.json", "provenance.json", "card.json"}

def publish_tuesdays():
    publish(load_frozen(tuesday), "A", best)

publish(load_frozen(monday), "A", best)
kills = 0
while os.WIFSIGNALED(status_of(publish_tuesdays, kills + 1)):
    kills += 1
    assert (models_folder / "latest").readlink().name in ("r1", "r2"), kills
    for run in ("r1", "r2"):
        model = models_folder / run
        assert run == "r2" and not model.exists() or set(os.listdir(model)) == whole
    assert status_of(publish_tuesdays, 0) == 0, kills
    names = set(os.listdir(models_folder)) - {".lock", ".history.json"}
    assert names == {"latest", "r1", "r2"}, (kills, names)
    assert (models_folder / "latest").readlink().name == "r2"
    os.system(f"cd '{models_folder}'; rm -r r2 .history.json; ln -sfn r1 latest")
print(kills)
"""


@pytest.mark.slow
def test_kill_9_at_any_system_call_leaves_a_current_model(
    study: Study, best: TrialFolder, tmp_path: Path
) -> None:
    for i in (0, 1):
        created = MONDAY + timedelta(days=i)
        frozen = FrozenStudy(run=f"r{i + 1}", folder="/runs/demo", created=created, study=study)
        (tmp_path / f"r{i + 1}.yaml").write_text(dump_frozen(frozen))
    places = [tmp_path / "r1.yaml", tmp_path / "r2.yaml", best.root]
    command = [sys.executable, "-c", KILLED, *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30, "every call was a place of a death"


def test_leftovers_of_a_killed_publication_are_removed(study: Study, best: TrialFolder) -> None:
    left = models_folder_of(study) / ".publish-killed"
    left.mkdir(parents=True)
    (left / "weights").touch()
    (left.parent / ".latest").symlink_to("r0")
    publish_as("r1", study, best)
    assert names(models_folder_of(study)) == ["latest", "r1"]


def test_publishing_twice_is_publishing_once(study: Study, best: TrialFolder) -> None:
    assert publish_as("r1", study, best) == publish_as("r1", study, best)
    models_folder = models_folder_of(study)
    assert names(models_folder) == ["latest", "r1"]


def test_a_crash_before_the_end_leaves_the_previous_model_current(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_as("r1", study, best)
    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "sync_tree", lambda _: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            publish_as("r2", study, best)
    models_folder = models_folder_of(study)
    assert (models_folder / "latest").resolve().name == "r1"
    assert names(models_folder) == ["latest", "r1"]
    assert publish_as("r2", study, best).name == "r2"


def test_an_interrupted_publication_is_finished_without_a_second_copy(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish_as("r1", study, best)
    before = (published / "deep" / "weights").stat().st_ino
    (published.parent / "latest").unlink()
    monkeypatch.setattr(publish_module, "version", lambda _: "another since")
    publish_as("r1", study, best)
    assert (published.parent / "latest").resolve() == published
    assert (published / "deep" / "weights").stat().st_ino == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model/deep/weights", "w2"),  # size and time are the same: only the bytes differ
        ("model/more", ""),
        ("result.json", RESULT.replace("0.25", "0.125")),
        ("trained-on.json", '{"data": [], "code": []}'),
        ("trial.json", '{"region": "A", "trial": 4, "params": {}, "seed": 7, "objective": {}}'),
    ],
)
def test_a_second_run_of_the_same_id_is_refused_and_overwrites_nothing(
    study: Study, best: TrialFolder, name: str, content: str
) -> None:
    previous = provenance_of(publish_as("r1", study, best))
    publish_as("r2", study, best)
    (best.root / name).write_text(content)
    weights = best.model / "deep" / "weights"
    os.utime(weights, ns=(0, (models_folder_of(study) / "r1/deep/weights").stat().st_mtime_ns))
    with pytest.raises(
        InputError, match="exists already and has the model of another training; plan with another"
    ):
        publish_as("r1", study, best)
    models_folder = models_folder_of(study)
    assert (models_folder / "latest").resolve().name == "r2"
    assert (models_folder / "r1" / "deep" / "weights").read_text() == "w1"
    assert provenance_of(models_folder / "r1") == previous
    assert names(models_folder) == ["latest", "r1", "r2"]


@pytest.mark.parametrize("provenance", ["{", "[]", None])
def test_an_existing_folder_that_no_run_published_is_refused(
    study: Study, best: TrialFolder, provenance: str | None
) -> None:
    published = publish_as("r1", study, best)
    if provenance is None:
        shutil.rmtree(published)
        published.write_text("a file")
    else:
        (published / "provenance.json").write_text(provenance)
    with pytest.raises(InputError, match="exists already"):
        publish_as("r1", study, best)


@pytest.mark.parametrize("name", ["metrics.json", "provenance.json", "card.json"])
def test_a_model_file_with_a_reserved_name_is_refused(
    study: Study, best: TrialFolder, name: str
) -> None:
    (best.model / "deep" / name).write_text("{}")
    publish_as("r1", study, best)
    (best.model / name).write_text("{}")
    with pytest.raises(InputError, match=f"model/{name}' has a name that trialfleet itself uses"):
        publish_as("r2", study, best)


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../trial.json", "missing", "../model", "deep/weights", "link\udcff"]
)
def test_a_link_is_refused(study: Study, best: TrialFolder, target: str) -> None:
    (best.model / "deep" / "link\udcff").symlink_to(f"../{target}")
    (best.model / "link").symlink_to(target)
    with pytest.raises(InputError, match="is a symbolic link") as caught:
        publish_as("r1", study, best)
    assert str(caught.value).isprintable()
    assert not Path(study.publish).exists()


def test_a_model_folder_that_is_itself_a_link_is_refused(study: Study, best: TrialFolder) -> None:
    best.model.rename(best.root / "elsewhere")
    best.model.symlink_to("elsewhere")
    with pytest.raises(InputError, match="model' is a symbolic link"):
        publish_as("r1", study, best)


def test_a_pipe_in_the_model_is_refused(study: Study, best: TrialFolder) -> None:
    os.mkfifo(best.model / "pipe")
    with pytest.raises(InputError, match="pipe' is a pipe"):
        publish_as("r1", study, best)


def test_the_published_folder_can_be_read_by_others(study: Study, best: TrialFolder) -> None:
    best.model.chmod(0o700)
    assert publish_as("r1", study, best).stat().st_mode & 0o777 == 0o755


def test_only_a_complete_result_is_published(study: Study, best: TrialFolder) -> None:
    best.result.write_text(RESULT.replace("0.25", "NaN"))
    with pytest.raises(InputError, match="loss is nan"):
        publish_as("r1", study, best)
    assert names(models_folder_of(study)) == []


def test_the_trainers_result_is_cleaned_before_publication(study: Study, best: TrialFolder) -> None:
    versions = '{"lib": "1\\u001b[31m\\ud800", "torch": [], "trialfleet": "0"}'
    best.result.write_text(
        f'{{"status": "complete", "metrics": {{"loss": 1, "odd": NaN, "a\\ud800": 2}}, '
        f'"seconds": NaN, "versions": {versions}}}'
    )
    published = publish_as("r1", study, best)
    assert json.loads((published / "metrics.json").read_text()) == {"loss": 1, "a\ufffd": 2}
    assert provenance_of(published)["seconds"] is None
    assert provenance_of(published)["versions"]["lib"] == "1\ufffd"
    assert "torch" not in provenance_of(published)["versions"]
