"""The verdict on an attempt: by its recorded end, else by the first job that failed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.run.test_job_log import SUBMITTED, TERMINATED, executing, of
from trialfleet.optimizer.region_types import Complete
from trialfleet.workflows.facts.jobs.gang_records import (
    count_generations,
    gang_progress,
    ranks_and_generation,
)
from trialfleet.workflows.facts.jobs.gang_roster import (
    DONE,
    FORM,
    RUN,
    LeftOutAgent,
    RankAgent,
    Roster,
)
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.status.attempts.outcome import JOB_REMOVED, read_outcome, settle_attempt

SEATS = (RankAgent(0, "a", "h", 1), RankAgent(2, "b", "h", 2))


@pytest.fixture
def place(tmp_path: Path) -> TrialFolder:
    (tmp_path / "words/gang").mkdir(parents=True)
    (tmp_path / "result.json").write_text("")
    return TrialFolder(tmp_path)


def write_roster(place: TrialFolder, **more: object) -> Roster:
    own = Roster(cluster=6, generation=3, members=SEATS, trial=place.root.name)
    roster = replace(own, **more)  # type: ignore[arg-type]
    place.roster.write_text(json.dumps(roster.to_json()))
    return roster


def test_a_single_job_is_judged_by_dagmans_exit_code(tmp_path: Path) -> None:
    assert settle_attempt(TrialFolder(tmp_path), 7) == 7


def test_a_recorded_end_counts_although_a_waiting_job_was_removed(place: TrialFolder) -> None:
    result = {"status": "complete", "metrics": {"loss": 0.5}}
    place.result.write_text(json.dumps(result))
    recorded = {
        "job": "6.0",
        "token": "00000006",
        "turn": 1,
        "say": "ended",
        "trial": place.root.name,
    }
    place.said.write_text(json.dumps({**recorded, "code": 0}))
    outcome = read_outcome(place, settle_attempt(place, JOB_REMOVED), "loss", {})
    assert isinstance(outcome, Complete)
    place.said.write_text(json.dumps({**recorded, "code": 3}))
    assert settle_attempt(place, JOB_REMOVED) == 3


def test_without_a_recorded_end_the_first_job_that_failed_counts(place: TrialFolder) -> None:
    submitted = SUBMITTED.format(job=6)
    ended = TERMINATED.format(at="07:09:00").replace("return value 0", "return value 127")
    place.log.write_text(submitted + of(1, submitted) + of(1, executing("07:08:00") + ended))
    assert settle_attempt(place, JOB_REMOVED) == 127
    place.log.write_text(submitted + of(1, submitted))
    assert settle_attempt(place, JOB_REMOVED) == JOB_REMOVED


def test_only_a_trials_own_generations_count(place: TrialFolder) -> None:
    assert count_generations(place) is None
    write_roster(place, state=RUN, first=2)
    assert count_generations(place) == 2
    write_roster(place, state=FORM, first=2)
    assert count_generations(place) == 1, "the ranks of the next one don't train yet"
    write_roster(place, state=RUN, trial="another")
    assert count_generations(place) is None


def test_the_state_of_a_gang_is_shown(place: TrialFolder) -> None:
    assert ranks_and_generation(place) == {}
    assert gang_progress(place, 1, 2) == ("", False)
    write_roster(place, state=FORM)
    assert ranks_and_generation(place) == {"ranks": 0, "generation": 3}
    assert gang_progress(place, 1, 2) == (
        "its gang has 1 slot(s), and needs at least 2 to train",
        True,
    )
    assert gang_progress(place, 2, 2) == ("its ranks get ready for generation 3", False)
    write_roster(place, state=RUN)
    assert gang_progress(place, 2, 2) == ("2 rank(s) train, in generation 3", False)
    left_out = (LeftOutAgent("t2", "10.0.0.7", "10.0.0.6", time.time() + 60, 60.0),)
    write_roster(place, state=RUN, apart=left_out)
    assert gang_progress(place, 2, 2)[0] == (
        "2 rank(s) train, in generation 3; 10.0.0.7 is left out for now: "
        "it and 10.0.0.6 can't reach each other by TCP"
    )
    write_roster(place, state=RUN, apart=(left_out[0]._replace(until=time.time() - 1),))
    assert gang_progress(place, 2, 2) == ("2 rank(s) train, in generation 3", False)
    for state in (DONE, RUN):
        write_roster(place, state=state, code=0)
        assert ranks_and_generation(place) == {"ranks": 2, "generation": 3}
        assert gang_progress(place, 2, 2) == ("", False)
    write_roster(place, state=RUN, trial="another")
    assert ranks_and_generation(place) == {}
