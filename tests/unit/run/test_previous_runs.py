"""Runs learn from previous runs: from which, from which results, and with what effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import Run
from trialfleet.errors import InputError
from trialfleet.optimizer.region_types import Assignment, Complete
from trialfleet.optimizer.sampling.warm_start import read_previous
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text
from trialfleet.workflows.control.run.learn_from import MOST_RESULTS
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.frozen import load_frozen

pytestmark = pytest.mark.slow


SPACE = {"y": {"type": "float", "low": 0.0, "high": 1.0}}
REGIONS = ["A", "Ærø 'B'"]


@pytest.fixture(autouse=True)
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    return work


def planned(make_run: MakeRun, run: str, *, study: str = "demo", **changes: Any) -> Run:
    given = {"regions": REGIONS, "budget": {"trials": 8, "lanes": 1, "startup_trials": 4}}
    place = Path("runs", study, run).absolute()
    return make_run(SPACE, run=run, out=place, name=study, **{**given, **changes})


def studies_of(run: Run) -> RegionStudies:
    folder = RunFolder(run.folder)
    return RegionStudies(folder, load_frozen(folder.study))


def loss(region: str, params: dict[str, Any]) -> float:
    best = 0.2 if region == "A" else 0.3
    return float((params["x"] - best) ** 2 + (params["y"] - 0.6) ** 2)


def train(run: Run, trials: int = 8) -> dict[str, list[Assignment]]:
    """Ask for trials of each region and tell their results, as a run's nodes do."""
    studies = studies_of(run)
    found: dict[str, list[Assignment]] = {}
    for slug, region in studies.regions.items():
        found[region.name] = []
        for number in range(trials):
            node = f"{slug}.{number}"
            answer = studies.get_study(slug).ask(node)
            assert isinstance(answer, Assignment)
            value = {"loss": loss(region.name, answer.params)}
            studies.get_study(slug).tell(node, Complete(metrics=value, seconds=1.0, device="cpu"))
            found[region.name].append(answer)
    return found


def test_a_run_learns_from_the_newest_run_of_its_study(make_run: MakeRun) -> None:
    first = planned(make_run, "r1")
    assert not RunFolder(first.folder).previous_results.exists()
    assert plan_summary(first)["learns_from"] == []
    before = train(first)
    second = planned(make_run, "r2")
    learned = {"run": "demo/r1", "regions": 2, "trials": 16}
    assert plan_summary(second)["learns_from"] == [learned]
    text = plan_text(second)
    assert (
        "  learns   from demo/r1: 16 trials of 2 region(s); to turn this off: learn_from: []\n"
        in text
    )
    assert "from trial 3 of a region on, the optimiser's model chooses; before that, good" in text
    assert "from trial 5 of a region on, the optimiser's model chooses; before that, space" in (
        plan_text(first)
    )
    after = train(second)
    for region in REGIONS:
        losses = [loss(region, answer.params) for answer in before[region]]
        best = before[region][losses.index(min(losses))]
        assert after[region][1].params == best.params, "yesterday's best is retried"
        assert min(loss(region, a.params) for a in after[region]) <= min(losses)


def test_a_trial_names_the_runs_that_its_parameters_were_learned_from(make_run: MakeRun) -> None:
    train(planned(make_run, "r1"))
    second = planned(make_run, "r2")
    train(second, 5)
    (trials, _) = (
        studies_of(second).get_study(slug).trials() for slug in studies_of(second).regions
    )
    taught = trials[-1].user_attrs["taught"]
    assert set(taught) <= {f"demo/r1/{region}" for region in REGIONS}
    assert taught
    assert "taught" not in trials[0].user_attrs


def test_a_restarted_process_suggests_the_same_parameters(make_run: MakeRun) -> None:
    train(planned(make_run, "r1"))
    runs = [planned(make_run, f"r{i}", learn_from=["demo/r1"]) for i in (2, 3)]
    once = train(runs[0], 6)
    again: dict[str, list[Assignment]] = {}
    for _ in range(6):
        studies = studies_of(runs[1])
        for slug, region in studies.regions.items():
            known = again.setdefault(region.name, [])
            answer = studies.get_study(slug).ask(f"{slug}.{len(known)}")
            assert isinstance(answer, Assignment)
            value = {"loss": loss(region.name, answer.params)}
            node = f"{slug}.{len(known)}"
            studies.get_study(slug).tell(node, Complete(metrics=value, seconds=1.0, device="cpu"))
            known.append(answer)
    assert again == once


def test_a_run_learns_from_a_complete_run_instead_of_a_newer_incomplete_one(
    make_run: MakeRun,
) -> None:
    train(planned(make_run, "r1"))
    train(planned(make_run, "r2"), 1)
    planned(make_run, "r3")  # nothing ran
    assert plan_summary(planned(make_run, "r4"))["learns_from"][0]["run"] == "demo/r1"


def test_previous_runs_are_chosen_by_name_or_not_at_all(make_run: MakeRun) -> None:
    train(planned(make_run, "r1"))
    train(planned(make_run, "r1", study="other"))
    named = planned(make_run, "r2", learn_from=["other", "demo/r1"])
    assert [each["run"] for each in plan_summary(named)["learns_from"]] == ["other/r1", "demo/r1"]
    assert plan_summary(planned(make_run, "r3", learn_from=[]))["learns_from"] == []
    assert plan_summary(planned(make_run, "r4", sampler="TPESampler"))["learns_from"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learn_from": ["othre"]}, r"learn_from: 'othre' is neither a run's folder.*did you mean"),
        ({"learn_from": ["empty"]}, r"no run of the study 'empty' has results for .*, loss \(min"),
        (
            {"learn_from": ["other/r1"], "objective": {"metric": "auc", "direction": "maximize"}},
            r"learn_from: the run 'other/r1' tunes loss \(minimize\), but this study tunes auc",
        ),
    ],
)
def test_runs_that_cant_be_learned_from_are_refused(
    make_run: MakeRun, changes: dict[str, Any], message: str
) -> None:
    train(planned(make_run, "r1", study="other"))
    planned(make_run, "r1", study="empty")
    with pytest.raises(InputError, match=message):
        planned(make_run, "r2", **changes)
    assert not Path("runs/demo/r2").exists()


def test_only_the_built_in_sampler_learns(make_run: MakeRun) -> None:
    with pytest.raises(ValueError, match="requires sampler: RegionSampler"):
        planned(make_run, "r1", sampler="TPESampler", learn_from=["demo"])


def test_results_of_another_metric_are_not_learned_from(make_run: MakeRun) -> None:
    train(planned(make_run, "r1"))
    other = {"metric": "auc", "direction": "maximize"}
    assert plan_summary(planned(make_run, "r2", objective=other))["learns_from"] == []


def test_of_many_results_the_best_half_and_some_others_are_kept(make_run: MakeRun) -> None:
    many = {"trials": 70, "lanes": 1, "startup_trials": 70}
    first = planned(make_run, "r1", regions=["A"], budget=many)
    losses = sorted(loss("A", answer.params) for answer in train(first, 70)["A"])
    (task,) = read_previous(
        RunFolder(planned(make_run, "r2", regions=["A"]).folder).previous_results
    )
    assert len(task.losses) == MOST_RESULTS
    assert list(task.losses[: MOST_RESULTS // 2]) == losses[: MOST_RESULTS // 2]
    assert task.losses[-1] == losses[-1]


def test_results_to_be_maximized_are_negated(make_run: MakeRun) -> None:
    up = {"metric": "loss", "direction": "maximize"}
    train(planned(make_run, "r1", objective=up))
    file = RunFolder(planned(make_run, "r2", objective=up).folder).previous_results
    tasks = json.loads(file.read_text())["tasks"]
    assert all(value <= 0 for task in tasks for value in task["losses"])
    assert tasks[0]["losses"] == sorted(tasks[0]["losses"])
