"""What a run says that a person stops, to somebody who watches it at that moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialfleet.workflows.dagman.files import NodeStatus
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.status.region_state import reason_of
from trialfleet.workflows.status.states import RunState

STARTED = "001 (001.000.000) 2026-11-23 06:03:02.120 Job executing on host: <127.0.0.1:1>\n...\n"
REMOVED = "009 (001.000.000) 2026-11-23 06:03:17.346 Job was aborted.\n\t{}\n...\n"
BY_STOP = REMOVED.format("trialfleet stop (by user me)")


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (STARTED + BY_STOP, "stopped by trialfleet stop"),
        (STARTED + REMOVED.format("via condor_rm (by user me)"), "the run's jobs were removed"),
        (BY_STOP + STARTED, "the run's jobs were removed"),  # that was before a resume
        ("", "the run's jobs were removed"),
    ],
)
def test_a_region_of_a_run_that_is_stopped_names_no_state_of_dagmans(
    log: str, expected: str, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path)
    run.dag_files.log.write_text(log)
    node = NodeStatus(submitted=False, failed=True, details="Was STATUS_SUBMITTED")
    assert reason_of(run.region("A"), node, RunState.STOPPED, run.dag_files) == expected


def test_what_else_ends_a_region_is_told_in_dagmans_words(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    node = NodeStatus(submitted=False, failed=True, details="POST script failed with status 3")
    said = reason_of(run.region("A"), node, RunState.STOPPED, run.dag_files)
    assert said
    assert "POST script failed with status 3" in said
