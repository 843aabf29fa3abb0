"""Events of a run and of a study's days; the real pool's part is in tests/pool."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet import programs
from trialfleet.files import write_json
from trialfleet.infra.fleet.htcondor import demand
from trialfleet.infra.pool.machines import parse_machines
from trialfleet.workflows.control.dagman import alert_and_export_processes
from trialfleet.workflows.control.daily.day_alerts import digest_table, tell_days
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.control.notify import run_alerts
from trialfleet.workflows.control.notify.delivery import deliver
from trialfleet.workflows.control.notify.run_alerts import RunEvents
from trialfleet.workflows.control.run.new_run import plan
from trialfleet.workflows.facts.dagman.job_queue import HeldJob
from trialfleet.workflows.facts.journal.event import Event
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.spending import Spending
from trialfleet.workflows.rules.gate_decision import PassedModel
from trialfleet.workflows.rules.jobs_without_progress import JobTrouble
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.lost_work import WorkTime
from trialfleet.workflows.status.status_types import RunStatus
from trialfleet.workflows.study.daily import Daily
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.loading import load_fleet, load_published, load_study
from trialfleet.workflows.study.notify import Channel

NOTIFY = "notify: [{command: 'true'}]\n"
MONEY = Spending(spent=8.5, cap=10.0, left=1.5, reserve=1.0, ended=None, trouble=None)


class Scene:
    """A planned run whose status the test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
        (folder / "go.sh").write_text("exit 0\n")
        study = write(folder, MINIMAL + NOTIFY + more)
        self.folder = RunFolder(plan(study, run="r1", out=folder / "r1").folder)
        self.clock = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.clock)
        self.events = RunEvents(self.folder)
        planned = self.events._reader.read()
        running = replace(planned.regions[0], state=RunState.RUNNING, stage=Stage.TUNING)
        regions = (running, replace(running, name="NO", slug="NO"))
        self.status: RunStatus = replace(
            planned, state=RunState.RUNNING, regions=regions, notice=None
        )
        monkeypatch.setattr(self.events._reader, "read", lambda: self.status)

    def set(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)

    def region(self, **changes: Any) -> None:
        first, *others = self.status.regions
        self.set(regions=(replace(first, **changes), *others))

    def kinds(self, after: float = 0.0) -> list[str]:
        self.clock += after
        return [event.kind for event in self.events.poll()]


@pytest.fixture
def scene(work: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(work, monkeypatch)


def test_a_healthy_run_has_no_events(scene: Scene) -> None:
    assert scene.kinds() == []
    assert not scene.events.is_over
    assert scene.folder.alerts.stat().st_mode & 0o777 == 0o700


def test_a_failed_region_is_reported_with_its_reason_under_one_id(scene: Scene) -> None:
    scene.region(stage=Stage.FAILED, reason="4 of 4 trials failed: exit code 1, at 12:03:04")
    [event] = scene.events.poll()
    assert (event.kind, event.region, event.run) == ("region-failed", "A", "r1")
    assert event.title == "demo r1: A: failed: 4 of 4 trials failed: exit code 1, at 12:03:04"
    assert "trialfleet resume" in event.text
    scene.region(reason="4 of 4 trials failed: exit code 1, at 12:03:09")
    assert scene.events.poll()[0].id == event.id  # other figures are no other event
    scene.region(reason="its data is gone")
    assert scene.events.poll()[0].id != event.id


def test_a_kept_champion_and_drift_are_reported(scene: Scene) -> None:
    scene.region(
        published="/m/demo/A/r1",
        kept="worse by 0.3",
        drift="loss 9, outside its past range, 1 to 2",
    )
    kept, drift = scene.events.poll()
    assert (kept.kind, drift.kind) == ("champion-kept", "drift")
    assert "worse by 0.3" in kept.title
    assert "trialfleet promote" in kept.text
    assert "outside its past range" in drift.title
    assert drift.text == "History: trialfleet models demo/A"
    scene.region(kept=None)
    assert scene.kinds() == ["drift"]


def test_a_model_that_waits_for_approval_is_reported_at_once_with_its_command(scene: Scene) -> None:
    scene.region(
        published="/m/demo/A b/r1",
        awaits_approval="2026-11-22T03:10:41+00:00",
        not_latest="waits",
        gate=PassedModel(why="loss 0.3, champion 0.4", is_worse=False),
    )
    [event] = scene.events.poll()
    assert (event.kind, event.region, event.run) == ("awaits-approval", "A", "r1")
    assert event.title == (
        "demo r1: A: its new model passed the gate (loss 0.3, champion 0.4) and waits for approval"
    )
    assert "\nTo promote it: trialfleet promote '/m/demo/A b/r1' --why REASON\n" in event.text
    assert event.data == {"model": "/m/demo/A b/r1", "since": "2026-11-22T03:10:41+00:00"}
    scene.region(awaits_approval=None)
    assert scene.kinds() == []


def test_spending_is_reported_at_80_percent_and_at_the_cap(scene: Scene) -> None:
    scene.set(money=replace(MONEY, spent=7.9))
    assert scene.kinds() == []
    scene.set(money=MONEY)
    [event] = scene.events.poll()
    assert event.title == "demo r1: 8.50 USD spent of 10.00, 1.50 left"
    scene.set(money=replace(MONEY, spent=8.9))
    assert scene.events.poll()[0].id == event.id
    scene.set(money=replace(MONEY, spent=9.9, ended="the cap is reached"))
    [ended] = scene.events.poll()
    assert (ended.kind, ended.data) == ("budget-spent", {"cap": 10.0, "spent": 9.9})
    assert "raise fleet.price_cap.run" in ended.text


def test_budgets_in_usd_are_reported_by_region_and_run(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = "budget: {usd: 5, usd_per_run: 8, usd_per_day: 100}\nusd_per_hour: 1.0\n"
    scene = Scene(work, monkeypatch, budget)
    first, second = scene.status.regions
    scene.set(regions=(replace(first, usd=3.9), replace(second, usd=2.4)))
    assert scene.kinds() == []
    scene.set(regions=(replace(first, usd=4.1, spent="budget.usd is spent"), second))
    [ended] = scene.events.poll()
    assert ended.title == "demo r1: A: no more trials start: budget.usd is spent"
    assert "trialfleet cost" in ended.text
    scene.set(regions=(replace(first, usd=4.1), second))
    [of_region] = scene.events.poll()
    assert of_region.title == "demo r1: A: 4.10 USD of 5.00 spent (budget.usd)"
    scene.set(regions=(replace(first, usd=3.2), replace(second, usd=3.2)))
    [of_run] = scene.events.poll()
    assert of_run.title == "demo r1: 6.40 USD of 8.00 spent (budget.usd_per_run)"
    used_up = "budget.usd_per_run of 8 USD is used up: 6.4 USD are spent"
    scene.set(regions=(replace(first, usd=3.2, spent=used_up), replace(second, usd=3.2)))
    assert scene.kinds() == ["budget-spent"]


def test_a_node_with_sick_gpus_is_reported_with_a_command_that_finds_its_fleet(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = "fleet: {aws_regions: [eu-west-1], instance_types: [g5.xlarge]}\n"
    scene = Scene(work, monkeypatch, fleet)
    ad = {
        "Name": "slot1@n1",
        "TrialfleetInstance": "i-01",
        "TrialfleetInstanceType": "g5.xlarge",
        "TrialfleetGpuHealthy": False,
        "TrialfleetGpuReason": "Xid 79 in the kernel's log",
    }
    monkeypatch.setattr(demand, "fleet_machines", lambda _: parse_machines([ad]))
    [event] = scene.events.poll()
    assert (event.kind, event.data["instance"]) == ("sick-gpu", "i-01")
    file = shlex.split(event.text.partition("trialfleet fleet status ")[2])
    assert [load_fleet(Path(word)).full_name for word in file] == ["demo"]


@pytest.mark.parametrize(
    "trouble",
    [
        {"troubles": ("A: its DAGMan is gone",)},
        {"notice": "no space: 3 MB are free"},
        {"held": (HeldJob(job="7.0", node="A.l1.t01", reason="no such file"),)},
        {"state": RunState.HELD},
    ],
    ids=["fault", "notice", "hold", "state"],
)
def test_a_trouble_is_reported_only_if_it_lasts(scene: Scene, trouble: dict[str, Any]) -> None:
    well = scene.status
    scene.set(**trouble)
    assert scene.kinds() == []
    assert scene.kinds(after=run_alerts.LASTING - 1) == []
    assert scene.kinds(after=1) == ["attention"]
    scene.status = well
    assert scene.kinds() == []
    scene.set(**trouble)
    assert scene.kinds(after=10) == []  # it has begun again


def test_a_run_that_can_not_be_read_is_reported(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(work, monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr(time, "monotonic", lambda: scene.clock)
    scene.events = RunEvents(scene.folder)
    published = scene.folder.region("A").published
    published.write_text("{")
    assert scene.kinds() == []
    scene.clock += run_alerts.LASTING
    (event,) = scene.events.poll()
    assert event.kind == "attention"
    assert event.title.startswith(f"demo r1: it can't be read: '{published}' is damaged: ")
    published.unlink()
    assert "it can't be read" not in " ".join(one.title for one in scene.events.poll())


def test_an_unreachable_database_of_two_managers_is_reported_by_both(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(work, monkeypatch)
    frozen = load_frozen(scene.folder.study)
    assert frozen.study.daily is None
    more = {
        "storage": "postgresql+psycopg://nobody@127.0.0.1:1/none",
        "daily": Daily.model_validate({"at": "02:30", "zone": "UTC", "takeover_after": "30m"}),
    }
    shared = frozen.model_copy(update={"study": frozen.study.model_copy(update=more)})
    scene.region(stage=Stage.FAILED, reason="no data")
    scene.set(notice="the trials can't be read: no connection")
    scene.kinds()
    scene.clock += run_alerts.LASTING
    found = scene.events.poll()
    assert sorted(event.kind for event in found) == ["attention", "region-failed"]
    (told,) = run_alerts._not_left_to_other(shared, scene.folder, found)
    assert "no connection" in told.title
    assert run_alerts._not_left_to_other(frozen, scene.folder, found) == found


NOWHERE = JobTrouble(
    region="A",
    node="A.l1.t01",
    kind="evictions",
    what="its job 12.0 was evicted 3 times since 02:00, the last time from a: starter exited",
    machine="a",
    reason="starter exited",
)


def test_a_trial_without_progress_is_reported_immediately_once_per_reason(
    scene: Scene,
) -> None:
    again = replace(NOWHERE, node="A.l2.t01", what=NOWHERE.what.replace("3 times", "4 times"))
    scene.set(job_troubles=(NOWHERE,), troubles=(str(NOWHERE),))
    [event] = scene.events.poll()
    assert (event.kind, event.data["machine"]) == ("attention", "a")
    assert event.title == f"demo r1: {NOWHERE}"
    scene.set(job_troubles=(NOWHERE, again), troubles=(str(NOWHERE), str(again)))
    assert [each.id for each in scene.events.poll()] == [event.id]
    other = replace(NOWHERE, reason="Job vacated by schedd")
    scene.set(job_troubles=(again, other), troubles=())
    assert len({each.id for each in scene.events.poll()}) == 2


def test_lost_work_above_a_third_is_reported(scene: Scene) -> None:
    scene.set(work=WorkTime.from_parts([(200.0, 0.0), (100.0, 100.0)]))
    assert scene.kinds() == []
    scene.set(work=WorkTime.from_parts([(200.0, 1.0), (100.0, 100.0)]))
    [event] = scene.events.poll()
    assert event.kind == "attention"
    assert event.title == "demo r1: 34% of all work was lost: 2 of 5 min"
    scene.set(work=WorkTime.from_parts([(20.0, 20.0)]))
    assert scene.kinds() == []  # too little to report


def test_a_runs_end_is_reported_unless_a_person_stopped_it(scene: Scene) -> None:
    scene.set(state=RunState.STOPPED)
    assert scene.kinds() == []
    assert scene.events.is_over
    scene.set(state=RunState.FAILED)
    scene.region(stage=Stage.PUBLISHED, best=0.25)
    [end] = scene.events.poll()
    assert end.kind == "run-done"
    assert end.title == "demo r1: failed: 1 of 2 regions succeeded"
    assert end.text.splitlines()[0] == "A: published  loss 0.25"


# -- days ------------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)


class Day:
    """A study's folder of days, and who hears of them."""

    def __init__(self, folder: Path) -> None:
        self.heard = folder / "heard"
        script = f"cat >> '{self.heard}'; echo >> '{self.heard}'"
        self.channels = [Channel.model_validate({"command": ["sh", "-c", script]})]
        self.folder = DailyFolder(folder)
        self.journal = Journal(self.folder.journal)

    def end(self, day: date, outcomes: Iterable[Outcome], ended: datetime = NOW) -> None:
        self.journal.end(self.begin(day, outcomes, ended), ended)

    def begin(self, day: date, outcomes: Iterable[Outcome], started: datetime = NOW) -> Attempt:
        listed = list(outcomes)
        regions = tuple(one.region for one in listed)
        attempt = Attempt(
            date=day, attempt=1, run=str(day), regions=regions, started=started, deadline=None
        )
        self.journal.begin(attempt)
        self.journal.record(listed, started)
        return attempt

    def tell(self) -> list[Event]:
        before = self.heard.read_text() if self.heard.exists() else ""
        study = load_published(write(self.folder.root, MINIMAL))
        outbox = Outbox(self.folder.alerts)
        tell_days(study, self.channels, outbox, self.folder, self.journal, NOW)
        assert deliver(outbox, self.channels) == 0
        heard = self.heard.read_text().removeprefix(before) if self.heard.exists() else ""
        return [Event.read(json.loads(line)) for line in heard.splitlines()]


def outcome(
    day: date, region: str, ending: Ending, why: str = "", run: str | None = "r"
) -> Outcome:
    return Outcome(date=day, region=region, attempt=1, ending=ending, why=why, run=run)


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return Day(tmp_path)


def test_a_day_is_reported_once_as_a_table(day: Day) -> None:
    today = NOW.date()
    day.folder.study.write_text("/s/my study.yaml\n")
    day.end(
        today,
        [
            outcome(today, "Oslo", Ending.PUBLISHED),
            outcome(today, "Rio", Ending.KEPT, "worse by 0.3"),
            outcome(today, "São Paulo", Ending.FAILED, "no such file", run=None),
        ],
    )
    failed, done = day.tell()
    assert (failed.kind, done.kind) == ("region-failed", "day-done")
    assert "backfill" in failed.text
    assert done.title == "demo 2026-11-22: 1 published, 1 kept, 1 failed"
    assert done.text.splitlines() == [
        "São Paulo  failed     no such file",
        "Rio        kept       worse by 0.3",
        "Oslo       published",
        (
            "To retry: trialfleet daily backfill '/s/my study.yaml' --from 2026-11-22 --to "
            "2026-11-22"
            " --only missing"
        ),
    ]
    assert done.data["counts"] == {"published": 1, "kept": 1, "unchanged": 0, "failed": 1}
    assert day.tell() == []


def test_a_digest_names_the_command_that_approves_a_waiting_model(day: Day) -> None:
    today, root = NOW.date(), day.folder.root
    (root / "go.sh").write_text("exit 0\n")
    load_study(write(root, MINIMAL))
    models = root / "models" / "demo" / "NO"
    (models / "r2").mkdir(parents=True)
    write_json(models / "r2" / "provenance.json", {"study": "demo", "region": "NO", "run": "r2"})
    write_json(models / ".awaiting.json", {"schema": 1, "run": "r2", "since": NOW.isoformat()})
    attempt = day.begin(
        today, [outcome(today, "NO", Ending.KEPT, "it passed the gate: x", run="r2")], NOW
    )
    day.journal.end(attempt, NOW)
    [done] = day.tell()
    command = f"trialfleet promote {models / 'r2'}"
    assert done.text.splitlines() == [
        "NO  kept       it passed the gate: x",
        f"NO: its new model waits for approval: {command}",
    ]
    assert done.data["regions"][0]["awaits_approval"] is True


def test_a_digest_shows_the_measured_values_and_the_moves_of_models(
    day: Day, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    today, root = NOW.date(), day.folder.root
    (root / "go.sh").write_text("exit 0\n")
    study = load_study(write(root, MINIMAL))
    run = RunFolder(plan(study, run="r2", out=root / "r2").folder)
    models = root / "models" / "demo" / "NO"
    for number, value in enumerate([0.25, 0.125], start=1):
        (models / f"r{number}").mkdir(parents=True)
        origin = {"study": "demo", "region": "NO", "run": f"r{number}"}
        origin["created"] = f"2026-11-2{number}T02:30:00+00:00"
        card = {**origin, "metrics": {"loss": value}, "report_metric": "loss", "gate": None}
        write_json(models / f"r{number}" / "provenance.json", origin)
        write_json(models / f"r{number}" / "card.json", card)
        promote(models / f"r{number}")
    rollback(models, why="bad labels")
    changed = history.changes(models / "latest")[-1].time
    assert changed is not None
    monkeypatch.setattr("tests.unit.run.test_alerts.NOW", datetime.fromisoformat(changed))
    write_json(run.region("NO").published, {"path": str(models / "r2")})
    before = datetime.fromisoformat(changed) - timedelta(days=1)
    attempt = day.begin(today, [outcome(today, "NO", Ending.PUBLISHED, run="r2")], before)
    day.journal.end(attempt, datetime.fromisoformat(changed))
    [done] = day.tell()
    back = "NO: r1's model is the current one instead of r2's: rollback by anna: bad labels"
    assert done.text.splitlines()[0] == "NO  published  loss 0.125, before 0.25"
    assert done.text.splitlines()[-1] == back
    assert done.data["regions"][0] | {"why": ""} == {
        "region": "NO",
        "ended": "published",
        "why": "",
        "metric": "loss",
        "value": 0.125,
        "value_before": 0.25,
    }
    assert [(move["by"], move["who"], move["why"]) for move in done.data["moves"]][-1] == (
        "rollback",
        "anna",
        "bad labels",
    )


def test_missing_data_is_reported_once_while_the_day_is_under_way(day: Day) -> None:
    today = NOW.date()
    attempt = day.begin(today, [outcome(today, "Rio", Ending.FAILED, "no such file", run=None)])
    [failed] = day.tell()
    assert (failed.kind, failed.region, failed.run) == ("region-failed", "Rio", None)
    assert failed.data == {"date": "2026-11-22", "attempt": 1, "why": "no such file"}
    day.journal.end(attempt, NOW)
    assert [event.kind for event in day.tell()] == ["day-done"]


def test_days_long_past_are_not_reported(day: Day) -> None:
    for back in (1, 30):
        when = NOW - timedelta(days=back)
        day.end(when.date(), [outcome(when.date(), "A", Ending.PUBLISHED)], when)
    assert [event.data["date"] for event in day.tell()] == ["2026-11-21"]


def test_a_study_without_channels_writes_no_alerts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    daily = "data: '{region}/{date}.txt'\ndaily: {at: '02:30', zone: UTC}\n"  # it isn't there
    (tmp_path / "go.sh").touch()
    days = Days(write(tmp_path, MINIMAL + daily), clock=lambda: NOW)
    days.run(NOW.date())
    days.finish_telling()
    assert days.journal.outcomes()
    assert not days.folder.alerts.exists()


def test_a_table_of_no_regions_is_empty() -> None:
    assert digest_table([]) == ""


# -- the supervisor's part -------------------------------------------------------------------------


def test_a_watcher_gets_the_absolute_path_of_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["schedule-alerts", "days"])
    found: list[Path] = []
    alert_and_export_processes.be_watcher(found.append, "")
    assert found == [tmp_path / "days"]


def test_one_process_reports_on_a_run_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program of the test's in the place of the one that looks at a run."""
    script = tmp_path / "told.py"
    script.write_text("import sys; open(sys.argv[2] + '/starts', 'a').write('x')\n")
    monkeypatch.setattr(programs, "command", lambda *words: [sys.executable, str(script), *words])
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with_alerts, without = RunFolder(tmp_path / "r1"), RunFolder(tmp_path / "r2")
    with_alerts.alerts.mkdir(parents=True)
    without.root.mkdir()
    keeper = alert_and_export_processes.Watchers()

    def look(after: float) -> int:
        clock[0] += after
        left = keeper.check([with_alerts, without])
        for process, _ in keeper._processes.values():
            process.wait()
        return len(left)

    def starts() -> int:
        return len((with_alerts.root / "starts").read_text())

    assert [look(0), look(5), starts()] == [1, 1, 1]  # it has ended, but just so
    assert [look(alert_and_export_processes.AGAIN_SECONDS), starts()] == [0, 1]
    with Outbox(with_alerts.alerts).hold_lock(wait=False) as ours:
        assert ours
        assert [look(0), starts()] == [1, 1]  # another process reports it
    script.write_text("import sys; open(sys.argv[2] + '/starts', 'a'); exit(1)\n")
    assert [look(0), look(alert_and_export_processes.AGAIN_SECONDS), look(1000)] == [1, 1, 1]


def test_a_run_whose_alerts_can_not_be_started_delays_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(programs, "command", lambda *_: ["true"])
    broken, other = RunFolder(tmp_path / "r1"), RunFolder(tmp_path / "r2")
    for run in (broken, other):
        run.alerts.mkdir(parents=True)
    (broken.alerts / "lock").symlink_to("lock")  # can't be opened
    keeper = alert_and_export_processes.Watchers()
    for _ in range(2):
        assert keeper.check([broken, other]) == [broken, other]
    assert caplog.text.count(f"{broken.root}: notify can't be started: ") == 1
    assert [watcher.run for watcher in keeper._processes] == [other.root]
    for process, _ in keeper._processes.values():
        process.wait()
