"""The service's checks of trials' reports, and the ends of trials with an order to stop."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.report.report_studies import text_of
from trialfleet import Run, untrusted_files
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.plan_summary import plan_text
from trialfleet.workflows.control.scripts import stop_orders
from trialfleet.workflows.control.scripts.script_requests import ScriptRequests
from trialfleet.workflows.control.scripts.stop_orders import AWAY_SECONDS, SECONDS
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.views.report.report_reader import read_report

pytestmark = pytest.mark.slow


STEPS = 20


class Service:
    """A run's service and its clock, the jobs played by the test."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.folder = RunFolder(run.folder)
        self.now = 0.0
        self.restart()
        self.files = self.folder.region("A")
        self.files.scripts_log.touch()  # the client's own log: the region has begun

    def restart(self) -> None:
        self.handler = ScriptRequests(self.folder)
        self.handler._stopping._clock = lambda: self.now

    def call(self, *words: str) -> Reply:
        return self.handler.handle(list(words))

    def ask(self, node: str) -> TrialFolder:
        assert self.call("ask", "A", node).exit_code == EXITS["done"]
        return self.files.trial(node)

    def tell(self, node: str, code: int = 0) -> Reply:
        return self.call("tell", "A", node, str(code), "0", "3", "0")

    def complete(self, node: str, end: float) -> None:
        place = self.ask(node)
        report(place.progress, end)
        result = {"status": "complete", "metrics": {"loss": end + 1 / STEPS}}
        place.result.write_text(json.dumps(result))
        assert self.tell(node).exit_code == EXITS["done"]

    def look(self) -> None:
        """Let the service do what is due, a while later."""
        self.now += SECONDS + 0.1
        while self.handler.idle():
            pass

    def state(self, node: str) -> str:
        return next(trial.state.value for trial in self.run.trials() if trial.node == node)


def report(path: Path, end: float, steps: int = STEPS) -> None:
    lines = [
        json.dumps({"step": step, "metrics": {"loss": end + 1 / step}}) + "\n"
        for step in range(1, steps + 1)
    ]
    path.write_text("".join(lines))


@pytest.fixture
def service(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Three trials are complete; the best has 0.1 and a bit."""
    monkeypatch.setattr(stop_orders, "SHARE", math.inf)  # a slow machine puts no look off
    run = make_run(
        budget={"trials": 8, "lanes": 2}, early_stopping={"startup_trials": 3, "min_steps": 3}
    )
    made = Service(run)
    for number, end in enumerate((0.1, 0.15, 0.2), start=1):
        made.complete(f"A.l1.t0{number}", end)
    return made


def test_a_trial_with_bad_reports_gets_an_order_to_stop(service: Service) -> None:
    bad, good, silent = (service.ask(f"A.l2.t0{i}") for i in (1, 2, 3))
    assert [place.stop.read_text() for place in (bad, good, silent)] == ["", "", ""]
    service.look()
    report(bad.reports, 0.8, 8)
    report(good.reports, 0.05, 8)
    service.look()
    order = json.loads(bad.stop.read_text())
    assert (order["step"], order["max_steps"]) == (8, STEPS)
    assert order["predicted"] == pytest.approx(0.8 + 1 / STEPS, abs=0.05)
    assert order["best"] == pytest.approx(0.1 + 1 / STEPS)
    assert [place.stop.read_text() for place in (good, silent)] == ["", ""]


def test_a_trial_that_was_not_stopped_is_judged_again_without_new_reports(
    service: Service,
) -> None:
    """Of two only one is stopped at once; and another's result may show that a trial is behind."""
    places = [service.ask("A.l2.t01"), service.ask("A.l2.t02")]
    for place in places:
        report(place.reports, 0.8, 8)
    service.look()
    assert sum(bool(place.stop.read_text()) for place in places) == 1
    service.look()
    assert all(place.stop.read_text() for place in places)
    near = service.ask("A.l2.t03")
    report(near.reports, 0.05, 8)
    service.look()
    assert not near.stop.read_text()
    service.complete("A.l1.t04", -0.5)
    service.look()
    assert near.stop.read_text()


def test_a_full_disk_delays_a_decision(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    place = service.ask("A.l2.t01")
    report(place.reports, 0.8, 8)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(untrusted_files, "write_json", full)
        with pytest.raises(OSError, match="No space"):
            service.look()
    service.look()
    assert not place.stop.read_text()  # not so soon
    service.now += AWAY_SECONDS
    service.look()
    assert place.stop.read_text()


@pytest.mark.parametrize("text", ["}{", "[1]", '{"predicted": "x"}', '{"predicted": 1e999}', "{}"])
def test_an_invalid_order_stops_no_trial(service: Service, text: str) -> None:
    """A trial could write one itself."""
    place = service.ask("A.l2.t01")
    place.stop.write_text(text)
    assert service.tell("A.l2.t01", 1).exit_code == EXITS["retry"]


def test_checks_run_at_intervals_and_decide_nothing_without_new_reports(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = service.ask("A.l2.t01")
    report(bad.reports, 0.05, 8)
    service.look()
    assert not service.handler.is_due()
    service.now += SECONDS + 0.1
    assert service.handler.is_due()

    def never(*_: object) -> None:
        raise AssertionError("nothing is new")

    monkeypatch.setattr(service.handler._stopping, "_decide", never)
    service.look()


@pytest.mark.parametrize("code", [0, 1, -9, -15, 85])
def test_a_trial_with_an_order_to_stop_is_stopped_early_with_any_exit_code(
    service: Service, code: int
) -> None:
    place = service.ask("A.l2.t01")
    report(place.reports, 0.8, 8)
    service.look()
    report(place.progress, 0.8, 9)
    reply = service.tell("A.l2.t01", code)
    assert reply.exit_code == EXITS["done"]
    assert "stopped early at step 8: loss = 0.8" in reply.message
    (trial,) = [trial for trial in service.run.trials() if trial.node == "A.l2.t01"]
    assert (trial.state, trial.value, trial.error) == ("stopped early", None, None)
    assert trial.predicted == json.loads(place.stop.read_text())["predicted"]
    assert service.call("ask", "A", "A.l2.t01").exit_code == EXITS["skip"]
    assert service.tell("A.l2.t01", code).exit_code == EXITS["done"]  # again: nothing changes
    assert len(service.run.trials()) == 4


@pytest.mark.parametrize(
    ("code", "result", "state"),
    [
        (0, {"status": "complete", "metrics": {"loss": 0.7}}, "complete"),
        (0, {"status": "stopped", "metrics": {"loss": 0.9, "acc": 0.5}}, "stopped early"),
        (64, {"status": "failed", "error": "diverged"}, "failed"),
    ],
)
def test_the_result_of_a_trial_with_an_order_to_stop_decides_its_state(
    service: Service, code: int, result: dict[str, object], state: str
) -> None:
    """A result counts: it came to its end before it heard."""
    place = service.ask("A.l2.t01")
    report(place.reports, 0.8, 8)
    service.look()
    place.result.write_text(json.dumps(result))
    service.tell("A.l2.t01", code)
    assert service.state("A.l2.t01") == state
    (trial,) = [trial for trial in service.run.trials() if trial.node == "A.l2.t01"]
    assert trial.metrics == result.get("metrics", {})


def test_a_trial_that_reports_stopped_without_an_order_has_failed(service: Service) -> None:
    place = service.ask("A.l2.t01")
    place.result.write_text(json.dumps({"status": "stopped", "metrics": {"loss": 0.9}}))
    service.tell("A.l2.t01")
    assert service.state("A.l2.t01") == "failed"


def test_an_order_to_stop_remains_after_the_service_and_the_job_are_lost(service: Service) -> None:
    """The service is killed, the job is lost with its DAGMan: nobody trains it again."""
    place = service.ask("A.l2.t01")
    report(place.reports, 0.8, 8)
    service.look()
    order = place.stop.read_text()
    service.restart()
    service.look()
    assert place.stop.read_text() == order
    reply = service.call("ask", "A", "A.l2.t01")
    assert (reply.exit_code, service.state("A.l2.t01")) == (EXITS["skip"], "stopped early")


def test_the_next_attempt_of_a_trial_without_a_decision_has_no_reports(
    service: Service,
) -> None:
    place = service.ask("A.l2.t01")
    report(place.reports, 0.8, 1)  # too few to decide
    service.look()
    assert service.tell("A.l2.t01", 1).exit_code == EXITS["retry"]
    service.ask("A.l2.t01")
    assert (place.reports.read_text(), place.stop.read_text()) == ("", "")


def test_a_trial_that_was_stopped_early_is_never_the_best(service: Service) -> None:
    """Even if its predicted value were better than any result."""
    place = service.ask("A.l2.t01")
    order = {"schema": 1, "step": 8, "max_steps": STEPS, "predicted": -5.0}
    place.stop.write_text(json.dumps(order))
    service.tell("A.l2.t01")
    (best,) = service.run.best()
    assert best.value == pytest.approx(0.1 + 1 / STEPS)
    (region,) = service.run.status().regions
    assert region.best == pytest.approx(0.1 + 1 / STEPS)
    assert (region.done, region.stopped_early, region.pruned) == (3, 1, 0)


def test_the_sampler_learns_the_predicted_value_in_any_process(make_run: MakeRun) -> None:
    """The next point depends on it, and is the same after a restart."""
    proposed = {}
    for name, predicted in (("a", 0.9), ("b", 0.9), ("c", -0.5)):
        run = make_run(
            run=name,
            budget={"trials": 8, "lanes": 1, "startup_trials": 4},
            early_stopping={"startup_trials": 3},
        )
        service = Service(run)
        for number, end in enumerate((0.1, 0.15, 0.2, 0.3), start=1):
            service.complete(f"A.l1.t0{number}", end)
        place = service.ask("A.l1.t05")
        place.stop.write_text(json.dumps({"step": 8, "max_steps": STEPS, "predicted": predicted}))
        service.tell("A.l1.t05")
        if name == "b":
            service.restart()
        service.ask("A.l1.t06")
        proposed[name] = run.trials()[-1].params["x"]
    assert proposed["a"] == proposed["b"]
    assert proposed["a"] != proposed["c"]


def test_every_view_says_stopped_early(service: Service) -> None:
    place = service.ask("A.l2.t01")
    report(place.reports, 0.8, 8)
    service.look()
    service.tell("A.l2.t01", -15)
    folder = str(service.folder.root)
    cli = CliRunner()
    assert "stopped early" in cli.invoke(main, ["status", folder]).output
    table = cli.invoke(main, ["trials", folder], terminal_width=200).output
    assert "stopped early" in table
    assert "~0.8" in table
    rows = cli.invoke(main, ["trials", folder, "--csv"]).output
    assert ",stopped early,," in rows
    page = text_of(read_report(service.folder))
    assert "stopped early" in page
    why = cli.invoke(main, ["why", "--run", folder, "A.l2.t01"]).output
    assert "at step 8 of 20 the prediction for its end was 0.8" in " ".join(why.split())


def test_reports_received_during_the_training_count_if_the_job_left_none(service: Service) -> None:
    place = service.ask("A.l2.t01")
    report(place.reports, 0.8, 8)
    service.look()
    report(place.reports, 0.8, 11)
    service.tell("A.l2.t01", -9)
    (region,) = read_report(service.folder).regions
    stopped = next(trial for trial in region.trials if trial.node == "A.l2.t01")
    assert (stopped.stopped["step"], stopped.curve[-1][0]) == (8, 11)


def test_plan_shows_the_policy_and_warns_of_a_trainer_without_reports(
    make_run: MakeRun, work: Path
) -> None:
    rule = {"min_steps": 3, "confidence": 0.9, "max_stopped": 0.5}
    budget = {"trials": 20}
    text = plan_text(make_run(early_stopping=rule, budget=budget))
    words = "a trial early if it will end worse than its region's best with 90% confidence"
    assert f"stops    {words}" in text
    assert "from step 3, after 4 complete trials; at most 50% of a region's" in text
    assert "never stopped early" not in text  # the trainer mentions progress.jsonl
    (work / "mute.py").write_text("print('nothing')\n")
    mute = {"command": ["python3", "mute.py"], "files": [str(work / "mute.py")]}
    warned = plan_text(make_run(run="r2", early_stopping={}, trainer=mute, budget=budget))
    assert "trials without reports are never stopped early" in warned
    assert "from 5% of its steps" in warned
    assert "should_stop" not in warned  # it never gets an order
    assert "stops  " not in plan_text(make_run(run="r3"))


@pytest.mark.parametrize(
    ("program", "is_warned"),
    [
        ("t.report(1, loss=1.0)\n", True),
        ("t.report(1, loss=1.0)\nif t.should_stop(): t.stop(loss=1.0)\n", False),
        ("open('progress.jsonl', 'a')\nopen('stop.json')\n", False),
    ],
)
def test_plan_warns_of_a_trainer_that_never_looks_for_the_order(
    make_run: MakeRun, work: Path, program: str, *, is_warned: bool
) -> None:
    (work / "curve.py").write_text(program)
    trainer = {"command": ["python3", "curve.py"], "files": [str(work / "curve.py")]}
    rule = {"grace_seconds": 77}
    text = plan_text(make_run(early_stopping=rule, trainer=trainer, budget={"trials": 20}))
    assert ("no file of the trainer mentions should_stop() or stop.json" in text) is is_warned
    assert ("trains for another 77 s" in text) is is_warned
    quiet = plan_text(make_run(run="r2", trainer=trainer, budget={"trials": 20}))
    assert "should_stop" not in quiet


@pytest.mark.parametrize(
    ("name", "rule", "is_warned"),
    [
        ("epochs", {}, True),
        ("max_steps", {}, True),
        ("num_boost_round", {}, True),
        ("epochs", {"max_steps": 50}, False),
        ("step_size", {}, False),
        ("epochs", None, False),
    ],
)
def test_plan_warns_of_early_stopping_among_trials_of_different_lengths(
    make_run: MakeRun, name: str, rule: dict[str, int] | None, *, is_warned: bool
) -> None:
    space = {name: {"type": "int", "low": 5, "high": 50}}
    text = plan_text(make_run(early_stopping=rule, search_space=space, budget={"trials": 20}))
    words = f"the search space has {name!r}, so that trials may differ in length"
    assert (words in text) is is_warned


def test_plan_shows_that_a_small_budget_allows_no_early_stop(make_run: MakeRun) -> None:
    text = plan_text(make_run(budget={"trials": 4}, early_stopping={}))
    words = "  stops    no trial early: all 4 trials of a region must complete first"
    assert f"{words} (early_stopping.startup_trials: 4)\n" in text
    assert "a trial early if" in plan_text(
        make_run(run="r2", budget={"trials": 5}, early_stopping={})
    )


def test_a_study_without_early_stopping_stops_no_trial_early(make_run: MakeRun) -> None:
    service = Service(make_run())
    place = service.ask("A.l1.t01")
    assert place.stop.read_text() == ""
    assert json.loads(place.order.read_text())["grace_seconds"] is None
    assert not service.handler.is_due()
