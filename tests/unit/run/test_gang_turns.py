"""A gang's keeper and the optimiser's service in a lane. The test plays the ranks."""

from __future__ import annotations

import io
import json
import tarfile
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import MakeRun
from tests.job_logs import JobLog
from trialfleet import Run
from trialfleet.nodes.gang import member
from trialfleet.nodes.gang.member import Member, state_file_name
from trialfleet.nodes.gang.packages import RESULT, Package
from trialfleet.workflows.control.gang import keeper
from trialfleet.workflows.control.gang.keeper import Keeper
from trialfleet.workflows.control.scripts.script_requests import ScriptRequests
from trialfleet.workflows.facts.jobs.gang_records import read_roster
from trialfleet.workflows.facts.jobs.gang_roster import DONE, FORM, RUN, Roster
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.rules.gang_decision import MACHINE_FAULT

pytestmark = pytest.mark.slow
NODE = "A.l1"
REMOVED = "-1002"


class Gang:
    """A lane's two jobs, their keeper, and the service that answers it."""

    def __init__(self, run: Run) -> None:
        self.run, self.folder = run, RunFolder(run.folder)
        self.service = ScriptRequests(self.folder)
        self.seconds = 1e9  # after which its jobs begin no other trial
        self.cluster = 4
        self.log = JobLog(self.place.log, self.cluster, begin=JobLog.now())

    @property
    def place(self) -> TrialFolder:
        return self.folder.region("A").trial(NODE)

    @property
    def roster(self) -> Roster:
        return read_roster(self.place) or Roster(cluster=0)

    def submit(self) -> None:
        assert self.service.handle(["ask", "A", NODE]).exit_code == EXITS["done"]
        self.cluster += 1
        self.log.submitted(0, procs=2)
        for self.log.proc in (0, 1):
            self.log.executes(0)
        self.agents = [Member(f"t{proc}", 1, "h", 10, member.WAITING, 0) for proc in range(2)]

    def take_turns(self, turns: int = 8) -> None:
        """Have ranks, keeper and service take turns; each time with a new keeper."""
        for _ in range(turns):
            self.agents = [self._step(agent) for agent in self.agents]
            for proc, agent in enumerate(self.agents):
                (self.place.gang / state_file_name(proc)).write_text(agent.to_text())
            keeper = Keeper(self.folder, seconds={"A": self.seconds})
            keeper._keep(self.cluster, [self._ad(proc) for proc in range(2)])
            if (now := self.roster).state == FORM and now.since > 1:  # it lasts for long already
                self.place.roster.write_text(json.dumps({**now.to_json(), "since": 1.0}))
            self.service.handle_events()

    def _step(self, agent: Member) -> Member:
        now = self.roster
        if now.state == FORM and now.generation > agent.generation:
            return replace(agent, phase=member.READY, generation=now.generation, code=0)
        if now.state == RUN and agent.phase == member.READY:
            return replace(agent, phase=member.RUNNING, cpu=1.5, memory=20.0)
        return agent

    def _ad(self, proc: int) -> dict[str, Any]:
        now = int(time.time())
        return {
            "ClusterId": self.cluster,
            "ProcId": proc,
            "Iwd": str(self.place.root),
            "JobStatus": 2,
            "JobStartDate": now - 60,
            "JobCurrentStartDate": 1,
            "EnteredCurrentStatus": now - 60,
            "RequestDisk": 100_000,
            "TrialfleetNode": NODE,
            "TrialfleetRegion": "A",
            "TrialfleetGangMin": 2,
            "TrialfleetGangMax": 2,
        }

    def ends(self, loss: float, code: int = 0, rank: int = 0) -> None:
        """Have a rank end the trial, and see what follows."""
        generation = self.agents[rank].generation
        result = {"status": "complete" if code == 0 else "failed", "metrics": {"loss": loss}}
        files = {"result.json": json.dumps(result), "out": "words", "model/weights": "w"}
        package = self.place.gang / Package(RESULT, generation, rank).name
        with tarfile.open(package, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        phase = member.FINISHED if code == 0 else member.FAILED
        self.agents[rank] = replace(self.agents[rank], phase=phase, code=code)
        self.take_turns()

    def post(self) -> int:
        return self.service.handle(["tell", "A", NODE, REMOVED, "0", "30", "0"]).exit_code


@pytest.fixture
def gang(make_run: MakeRun) -> Gang:
    budget = {"trials": 3, "lanes": 1, "trials_per_job": "all"}
    return Gang(make_run(budget=budget, resources={"nodes": {"min": 2, "max": 2}}))


def test_a_gang_trains_one_trial_after_another_and_then_the_best_in_full(gang: Gang) -> None:
    gang.submit()
    for number, loss in ((1, 0.5), (2, 0.3), (3, 0.4)):
        gang.take_turns()
        assert (gang.roster.state, gang.roster.trial) == (RUN, f"A.l1.t{number:02}")
        assert len(gang.run.trials()) == number
        gang.ends(loss)
    records = gang.run.trials()
    assert [record.value for record in records] == [0.5, 0.3, 0.4]
    found = [(r.ranks, r.generations, r.attempts, r.memory_mb) for r in records]
    assert found == 3 * [(2, 1, 1, 20.0)], "each trial counts its own generations"
    assert records[0].cpu_seconds == 3.0, "that of all ranks"
    assert (gang.roster.state, gang.roster.trial) == (RUN, "best")
    gang.ends(0.3)
    assert (gang.roster.state, gang.roster.code) == (DONE, 0)
    assert (gang.folder.region("A").best.model / "weights").read_text() == "w"
    assert gang.post() == EXITS["done"]
    assert gang.service.handle(["ask-best", "A", "A.best"]).exit_code == EXITS["skip"]


def test_a_gang_whose_time_is_up_leaves_and_another_continues(gang: Gang) -> None:
    gang.seconds = 30
    gang.submit()
    gang.take_turns()
    gang.ends(0.5)
    assert (gang.roster.state, gang.roster.code) == (DONE, 0)
    assert gang.post() == EXITS["retry"]
    gang.seconds = 1e9
    gang.submit()
    gang.take_turns()
    assert (gang.roster.state, gang.roster.trial) == (RUN, "A.l1.t02")


def test_a_gang_without_an_answer_costs_no_attempt(gang: Gang) -> None:
    gang.submit()
    gang.take_turns()
    gang.log.proc = 1
    gang.log.terminated(1, code=75)
    gang.log.proc = 0
    gang.log.removed(2)
    assert gang.post() == EXITS["retry"]
    assert gang.run.trials()[0].state == "unknown"
    assert gang.service._studies.get_study("A").failures("A.l1.t01") == {}


def test_parameters_that_a_rank_rejects_end_the_trial_and_the_gang_continues(gang: Gang) -> None:
    gang.submit()
    gang.take_turns()
    gang.ends(0.5, code=64, rank=1)
    (first, _) = gang.run.trials()
    assert (first.state, gang.roster.trial) == ("failed", "A.l1.t02")


def test_a_trial_that_its_ranks_could_not_train_is_tried_again_by_other_jobs(gang: Gang) -> None:
    gang.submit()
    gang.take_turns()
    for _ in range(3):
        gang.ends(0.5, code=1, rank=1)
    assert (gang.roster.state, gang.roster.code) == (DONE, 1)
    assert gang.post() == EXITS["retry"]
    gang.submit()
    gang.take_turns()
    assert (gang.roster.state, gang.roster.trial) == (RUN, "A.l1.t01")
    gang.ends(0.5)
    assert gang.run.trials()[0].attempts == 2


@pytest.mark.parametrize("vacated", [0, 6])
def test_a_job_that_lost_its_machine_after_an_earlier_fault_may_wait_for_another(
    gang: Gang, monkeypatch: pytest.MonkeyPatch, vacated: int
) -> None:
    """HTCondor keeps the exit code 87 of the earlier machine while the job runs elsewhere."""
    removed: list[str] = []
    monkeypatch.setattr(keeper, "_remove", lambda _cluster, _procs, why: removed.append(why))
    gang.submit()
    gang.take_turns()
    waits = {"JobStatus": 1, "EnteredCurrentStatus": 7, "ExitCode": 87, "JobCurrentStartDate": 5}
    ads = [gang._ad(0), {**gang._ad(1), **waits, "LastVacateTime": vacated}]
    Keeper(gang.folder)._keep(gang.cluster, ads)
    assert [why.startswith(MACHINE_FAULT) for why in removed] == ([] if vacated else [True])
