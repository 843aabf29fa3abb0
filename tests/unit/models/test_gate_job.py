"""The gate's job: the models it measures, its failures and its verdict. The test plays the jobs."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.models.conftest import KEPT_R1, Day, MakeDay
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.control.scripts.gate_job import read_measurements
from trialfleet.workflows.facts.models.approval import read_awaiting
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.views.report.report_reader import read_report

pytestmark = pytest.mark.slow


def test_the_first_model_has_no_champion(champion: Day) -> None:
    verdict = json.loads(champion.files.verdict.read_text())
    assert (verdict["champion"], verdict["challenger"]["run"]) == (None, "r1")
    assert (champion.latest, champion.not_latest) == ("r1", "")


def test_the_job_gets_both_models_and_the_order_to_measure_them(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2")
    assert day.ask_gate().exit_code == EXITS["done"]
    place = day.files.gate
    order = json.loads(place.trial_json.read_text())
    assert (order["mode"], order["models"]) == (
        "evaluate",
        {"champion": "champion", "challenger": "challenger"},
    )
    assert [(place.root / name / "weights").read_text() for name in order["models"]] == ["r1", "r2"]
    submit = place.submit.read_text()
    assert ", champion, challenger" in submit
    assert json.loads(place.order.read_text())["left"] == ["losses"]
    assert day.ask_gate().exit_code == EXITS["done"]  # a DAGMan that was lost asks again


@pytest.mark.parametrize(("challenger", "verdict"), [(0.3, "promoted"), (0.5, "kept")])
def test_the_better_model_is_the_current_one(
    champion: Day, make_day: MakeDay, challenger: float, verdict: str
) -> None:
    day = make_day("r2")
    found = day.decide(0.4, challenger)
    assert (found["verdict"], found["metric"]) == (verdict, "loss")
    assert found["champion"] == {"run": "r1", "metrics": {"loss": 0.4}}
    assert found["challenger"] == {"run": "r2", "metrics": {"loss": challenger}}
    assert day.latest == ("r2" if verdict == "promoted" else "r1")
    assert json.loads((day.models / "r2" / "card.json").read_text())["gate"] == found
    assert (day.models / "r2" / "weights").read_text() == "r2"  # the rejected model is kept, too
    if verdict == "kept":
        assert f"{KEPT_R1}: loss 0.5, champion 0.4: worse by 0.1; to change" in day.not_latest
        assert KEPT_R1 in read_report(day.folder).to_json()
        promote(day.models / "r2")
        assert day.not_latest == ""


FAILURES = [
    (1, 1, "", "exit code 1"),
    (64, 0, "", "can't be trained"),
    (0, 1, "", "without writing result.json"),
    (0, 0, '{"status": "complete", "metrics": {"loss": 1}}', "doesn't know the mode evaluate"),
    (0, 0, '{"status": "complete", "models": {"champion": {}}}', "no metrics of the champion"),
    (0, 0, '{"status": "failed", "error": "no column x", "models": {}}', "no column x"),
    (
        *(0, 0),
        '{"status": "complete", "models": {"champion": {"metrics": {"loss": "0.4"}}}}',
        "the champion's metric 'loss' is text: '0.4'",
    ),
]


@pytest.mark.parametrize(("code", "retry", "result", "why"), FAILURES)
def test_a_failed_gate_job_keeps_the_champion_and_does_not_fail_the_region(
    champion: Day, make_day: MakeDay, code: int, retry: int, result: str, why: str
) -> None:
    day = make_day("r2")
    day.ask_gate()
    day.files.gate.result.write_text(result)
    assert day.tell_gate(code, retry=retry).exit_code == EXITS["done"]
    found = day.publish()
    assert found["verdict"] == "kept"
    assert why in found["why"]
    assert found["champion"]["run"] == day.latest == "r1"
    assert day.not_latest.startswith(f"{KEPT_R1}: the gate's job failed")
    assert "trialfleet promote" in day.not_latest
    assert day.region_status.stage == "kept"


def test_a_gate_that_crashes_is_tried_again(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    day.ask_gate()
    assert day.tell_gate(1, retry=0).exit_code == EXITS["retry"]
    assert not day.files.verdict.exists()


@pytest.mark.parametrize(("text", "code"), [("{'models': {}}", "done"), ("", "retry")])
def test_a_measurement_with_a_wrong_result_is_not_repeated(
    champion: Day, make_day: MakeDay, text: str, code: str
) -> None:
    day = make_day("r2")
    day.ask_gate()
    day.files.gate.result.write_text(text)
    assert day.tell_gate(retry=0).exit_code == EXITS[code]


@pytest.mark.parametrize(
    ("champion_loss", "challenger_loss", "why"),
    [
        (0.4, math.nan, "the challenger's loss is nan"),
        (-math.inf, 0.3, "the champion's loss is -inf"),
    ],
)
def test_the_verdict_says_that_a_metric_is_not_finite(
    champion: Day, make_day: MakeDay, champion_loss: float, challenger_loss: float, why: str
) -> None:
    found = make_day("r2").decide(champion_loss, challenger_loss)
    assert found["verdict"] == "kept"
    assert found["why"].startswith(why)


@pytest.mark.parametrize("losses", ["1\nx\n", "1\nnan\n"])
def test_losses_that_are_no_numbers_keep_the_champion(
    champion: Day, make_day: MakeDay, losses: str
) -> None:
    day = make_day("r2")
    day.ask_gate()
    day.measure(0.4, 0.3)
    (day.files.gate.losses / "challenger.txt").write_text(losses)
    day.tell_gate()
    found = day.publish()
    assert found["verdict"] == "kept"
    assert "losses/challenger.txt" in found["why"]


def test_losses_that_are_no_file_keep_the_champion(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    day.ask_gate()
    day.measure(0.4, 0.3)
    os.mkfifo(day.files.gate.losses / "challenger.txt")
    with pytest.raises(ValueError, match=r"losses/challenger\.txt .*: challenger\.txt is a pipe"):
        read_measurements(day.files.gate)
    day.tell_gate()
    assert day.publish()["verdict"] == "kept"


def test_a_gate_without_money_keeps_the_champion(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    spending.note(day.folder, "final", "the cap is reached")
    assert day.ask_gate().exit_code == EXITS["skip"]
    assert "not measured: the cap is reached" in day.publish()["why"]
    assert day.latest == "r1"


def test_a_model_of_another_study_is_no_champion(champion: Day, make_day: MakeDay) -> None:
    provenance = champion.models / "r1" / "provenance.json"
    provenance.write_text(json.dumps(json.loads(provenance.read_text()) | {"study": "other"}))
    day = make_day("r2")
    assert day.ask_gate().exit_code == EXITS["skip"]
    day.publish()
    assert day.latest == "r2"


def test_a_champion_that_can_not_be_read_stays_current(
    champion: Day, make_day: MakeDay, list_models: Callable[..., str]
) -> None:
    (champion.models / "r1" / "provenance.json").write_text("{")
    day = make_day("r2")
    assert day.ask_gate().exit_code == EXITS["skip"]
    assert day.tell_gate(-1004, retry=0, pre=EXITS["skip"]).exit_code == EXITS["done"]
    found = day.publish()
    assert (found["verdict"], day.latest) == ("kept", "r1")
    assert "the models can't be measured: " in day.not_latest
    assert "r1/provenance.json' is damaged: it is not JSON" in day.not_latest
    assert day.region_status.stage == "kept"
    for words in ([], ["A"]):
        assert re.search(r"r1 .*current; its provenance.json can't be read", list_models(*words))


def test_a_model_that_became_current_after_the_measurement_stays_current(
    champion: Day, make_day: MakeDay
) -> None:
    second, third = make_day("r2"), make_day("r3")
    for day in (second, third):
        day.ask_gate()
        day.measure(0.4, 0.3)
        day.tell_gate()
    second.publish()
    assert third.publish()["verdict"] == "promoted"
    assert third.latest == "r2"
    assert third.not_latest.startswith(
        "kept the current model (run r2) instead of this one: it became the current model after "
        "the gate had compared the new model with r1"
    )


def arrive(day: Day, **content: Any) -> None:
    """Put the package of a gate's job where its agent puts it. No script learns of it."""
    place = day.files.gate
    for name, text in (("ended.json", {"code": 0}), ("result.json", content)):
        (day.folder.root / name).write_text(json.dumps(text))
    with tarfile.open(place.left, "w", format=tarfile.GNU_FORMAT) as package:
        for name in ("ended.json", "result.json"):
            package.add(day.folder.root / name, name)
    log = (
        "000 (009.000.000) 2026-11-20 10:00:01 Job submitted from host: <127.0.0.1:1>\n...\n"
        "001 (009.000.000) 2026-11-20 10:00:01 Job executing on host: <127.0.0.1:1>\n...\n"
    )
    place.log.write_text(log)


MODELS = {name: {"metrics": {"loss": 0.4}} for name in ("champion", "challenger")}


def test_the_gate_does_not_repeat_a_measurement_after_its_script_was_killed(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2")
    day.ask_gate()
    arrive(day, status="complete", models=MODELS)
    for _ in range(2):
        assert day.ask_gate().exit_code == EXITS["skip"]
    assert json.loads(day.files.gate.job.read_text())["stays"]
    assert day.publish()["champion"] == {"run": "r1", "metrics": {"loss": 0.4}}


def test_a_gate_job_that_measured_nothing_is_repeated(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    day.ask_gate()
    arrive(day, status="complete", metrics={"loss": 0.4})
    assert day.ask_gate().exit_code == EXITS["done"]


def test_the_gate_measures_again_after_either_model_changed(
    champion: Day, make_day: MakeDay
) -> None:
    second, third = make_day("r2"), make_day("r3")
    third.ask_gate()
    arrive(third, status="complete", models=MODELS)
    assert third.ask_gate().exit_code == EXITS["skip"]
    third.train_all()  # another model
    assert third.ask_gate().exit_code == EXITS["done"]
    arrive(third, status="complete", models=MODELS)
    assert third.ask_gate().exit_code == EXITS["skip"]
    assert second.decide(0.4, 0.3)["verdict"] == "promoted"  # r2 is the current model now
    assert third.ask_gate().exit_code == EXITS["done"]


def test_asking_and_publishing_again_changes_nothing(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    first = day.decide(0.4, 0.5)
    day.files.published.unlink()
    assert day.ask_gate().exit_code == EXITS["skip"]
    assert day.publish() == first
    assert day.latest == "r1"


@pytest.mark.parametrize(("challenger", "current"), [(0.3, "r2"), (0.5, "r1")])
def test_a_run_ends_the_same_after_its_queue_is_lost_after_the_publication(
    champion: Day, make_day: MakeDay, challenger: float, current: str
) -> None:
    """The note of the publication is lost; a new DAGMan trains again and asks the gate."""
    day = make_day("r2")
    first = day.decide(0.4, challenger)
    day.files.published.unlink()
    day.train_all()
    day.measure(0.4, 0.8 - challenger)  # no matter: the model is in the models folder
    assert not day.files.verdict.exists()
    assert day.ask_gate().exit_code == EXITS["skip"]
    assert day.publish() == first
    assert day.latest == current


KILLED = """
import os, shutil, sys
from pathlib import Path
from tests.killed_child import status_of
from trialfleet.files import read_json
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.control.scripts.publish_program import publish_region

folder, models_folder, every = RunFolder(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
files = folder.region("A")
ends, kill = set(), 1
while True:
    died = os.WIFSIGNALED(status_of(lambda: publish_region(folder, "A"), kill))
    assert (models_folder / "latest" / "weights").exists(), kill
    assert status_of(lambda: publish_region(folder, "A"), 0) == 0, kill
    verdict, published = read_json(files.verdict), read_json(files.published)
    current = (models_folder / "latest").readlink().name
    ends.add((verdict["verdict"], current, bool(published["not_latest"])))
    assert not [name for name in os.listdir(models_folder) if name.startswith(".publish-")], kill
    if not died:
        break
    shutil.rmtree(models_folder / "r2")
    os.system(f"ln -sfn r1 '{models_folder}/latest'")
    files.published.unlink()
    files.verdict.unlink()
    kill += every
print(kill, *ends)
"""


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("gate", "challenger", "end"),
    [
        ({}, 0.3, ("promoted", "r2", False)),
        ({}, 0.5, ("kept", "r1", True)),
        ({"approve": True}, 0.3, ("promoted", "r1", True)),
    ],
)
def test_kill_9_while_a_verdict_is_published_ends_the_same(
    champion: Day,
    make_day: MakeDay,
    gate: Any,
    challenger: float,
    end: tuple[object, ...],
    every: int,
) -> None:
    day = make_day("r2", gate=gate)
    day.ask_gate()
    day.measure(0.4, challenger)
    day.tell_gate()
    command = [sys.executable, "-c", KILLED, str(day.folder.root), str(day.models), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    kills, ends = done.stdout.splitlines()[-1].split(" ", 1)
    assert ends == str(end)
    assert int(kills) > 60
    assert (read_awaiting(day.models) is not None) is bool(gate)
