"""The scripts around a region's DAGMan, and DAGMan's codes for a node without a job."""

from __future__ import annotations

import json

import pytest

from tests.unit.scripts import Scripts
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS

pytestmark = pytest.mark.slow


def test_a_job_reported_without_the_code_of_its_pre_script_is_recorded(
    scripts: Scripts,
) -> None:
    scripts.ask("A.l1.t01")
    scripts.trial("A.l1.t01").result.write_text('{"status": "complete", "metrics": {"loss": 0.5}}')
    assert scripts.tell("A.l1.t01", 0, pre=-1) == EXITS["done"]
    assert [record.state for record in scripts.run.trials()] == ["complete"]
    scripts.train_best()
    (scripts.best.model / "weights").write_text("0.5")
    assert scripts.tell_best(0, pre=-1).exit_code == EXITS["done"]


@pytest.mark.parametrize(("pre", "answer"), [(3, 0), (1, 1), (-9, -9), (4, 4)])
def test_a_node_without_a_job_ends_with_the_code_of_its_pre_script(
    scripts: Scripts, pre: int, answer: int
) -> None:
    assert scripts.tell("A.l1.t01", -1004, pre=pre) == answer
    assert scripts.tell_best(-1004, pre=pre).exit_code == answer


@pytest.mark.parametrize(
    ("left", "return_code", "answer"),
    [
        ("published", "0", "done"),
        ("stopped", "1", "done"),  # the report says so
        ("restart", "-1002", "retry"),  # the supervisor removed it
        (None, "-1002", "done"),  # a person did
        (None, "1", "retry"),  # DAGMan failed
        (None, "4", "retry"),
    ],
)
def test_a_region_gets_another_dagman_unless_it_is_over(
    scripts: Scripts, left: str | None, return_code: str, answer: str
) -> None:
    if left:
        (scripts.files.root / f"{left}.json").write_text('{"path": "", "reason": ""}')
    assert scripts.call("end", "A", return_code).exit_code == EXITS[answer]


def test_a_region_whose_dagman_was_removed_names_who_did_it(scripts: Scripts) -> None:
    files = scripts.files
    by = "via condor_rm (by user me)"
    files.dag_files.log.write_text(
        f"009 (7.0.0) 2026-11-20 10:00:01 Job was aborted.\n\t{by}\n...\n"
    )
    assert scripts.call("end", "A", "-1002").exit_code == EXITS["done"]
    noted = json.loads(files.stopped.read_text())
    assert noted == {"reason": f"its jobs were removed: {by}", "removed": True}


def test_a_region_begins_without_the_files_of_its_previous_dagman(scripts: Scripts) -> None:
    files = scripts.files
    files.dag_files.nodes_log.write_text("events")
    files.dag_files.lock.touch()
    files.restart.write_text("{}")
    assert scripts.call("begin", "A").exit_code == EXITS["done"]
    left = {path.name for path in files.dag_files.aside.rglob("*") if path.is_file()}
    assert left == {"region.dag.nodes.log", "region.dag.lock"}
    assert not files.restart.exists()
    files.published.write_text('{"path": ""}')
    assert scripts.call("begin", "A").exit_code == EXITS["skip"]
