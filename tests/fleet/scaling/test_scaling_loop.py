from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fleet.mock_aws.nodes_at_hand import NOW
from tests.fleet.mock_aws.small_world import world
from trialfleet.errors import FleetError, PoolError
from trialfleet.files import lock_file
from trialfleet.infra.fleet.scaling import down_note
from trialfleet.infra.fleet.scaling.autoscaler import Step
from trialfleet.infra.fleet.scaling.autoscaler_process import Loop
from trialfleet.infra.fleet.scaling.last_report import default_report, read_report
from trialfleet.infra.fleet.scaling.scaling_decision import Removal

STEP = Step(at=NOW, nodes={}, waiting=0, running=0, price_per_hour=0, spent=0, since=NOW)


@dataclass
class Scripted:
    """An autoscaler whose steps are known beforehand; the last one ends the loop."""

    steps: list[Step | Exception]
    least: list[int] = field(default_factory=list)
    ended: Callable[[], None] = lambda: None
    last: Step | Exception = STEP

    def release_nodes(self) -> Step:
        if isinstance(self.last, Exception):
            raise self.last
        return self.last

    def step(self, *, least: int = 0) -> Step:
        self.least.append(least)
        now = self.steps.pop(0)
        if not self.steps:
            self.ended()
        if isinstance(now, Exception):
            raise now
        return now


@dataclass
class ScriptedGraph:
    """A graph that is over after some looks."""

    looks: int
    started: int = 0
    started_before: bool | Exception = False  # whether an autoscaler before this one has started it

    def is_started(self) -> bool:
        if isinstance(self.started_before, Exception):
            raise self.started_before
        return self.started_before

    def start(self) -> None:
        self.started += 1

    def is_over(self) -> bool:
        self.looks -= 1
        return self.looks == 0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine's files of autoscalers be in the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def loop(scripted: Scripted, report: Path, messages: list[str], **more: object) -> Loop:
    made = Loop(
        scripted,  # type: ignore[arg-type]
        fleet="demo",
        run="r1",
        report=report,
        progress=messages.append,
        pause=0.001,
        **more,  # type: ignore[arg-type]
    )
    scripted.ended = made.stop
    return made


def test_the_end_of_a_run_ends_its_nodes_and_is_in_the_report(tmp_path: Path) -> None:
    messages: list[str] = []
    last = Step(**{**vars(STEP), "notes": ("one node stays",)})
    report = tmp_path / "fleet.json"
    loop(Scripted([STEP], last=last), report, messages, ends_with_run=True).run()
    found = json.loads(report.read_text())
    assert (found["state"], found["step"]["notes"]) == ("ended", ["one node stays"])
    loop(Scripted([STEP], last=last), report, messages).run()  # by hand: it may begin again
    assert json.loads(report.read_text())["step"]["notes"] == []
    fails = Scripted([STEP], last=PoolError("no collector answers"))
    loop(fails, report, messages, ends_with_run=True).run()
    found = json.loads(report.read_text())
    assert (found["state"], found["error"]) == ("ended", "no collector answers")
    assert messages == ["nodes that are no longer needed may be left: no collector answers"]


def test_down_waits_for_the_autoscalers_current_step(tmp_path: Path) -> None:
    heard: list[str] = []

    def while_it_steps() -> None:
        with pytest.raises(FleetError, match="did not finish its current step within 0 s"):
            down_note.note_down("demo", seconds=0.1)
        heard.append(down_note.reason_no_nodes("demo"))
        made.stop()

    scripted = Scripted([STEP])
    made = loop(scripted, tmp_path / "fleet.json", [])
    scripted.ended = while_it_steps
    made.run()
    assert heard[0].startswith("the fleet was taken down at 20")
    down_note.note_down("demo", seconds=0)
    down_note.lift("demo")
    assert down_note.reason_no_nodes("demo") == ""


def test_a_damaged_record_of_fleet_down_keeps_the_fleet_down() -> None:
    down_note.note_down("demo", seconds=0)
    default_report("demo").with_suffix(".down").write_text("")
    why = down_note.reason_no_nodes("demo")
    assert why.startswith("the fleet counts as taken down, because '")
    assert why.endswith(".down' is damaged: it is empty; `trialfleet fleet up` starts it again")
    down_note.lift("demo")
    assert down_note.reason_no_nodes("demo") == ""


def test_the_report_contains_the_last_step(tmp_path: Path) -> None:
    removal = Removal(instance="i-1", reason="idle for 10 minutes", only_idle=True)
    last = Step(**{**vars(STEP), "nodes": {"idle": 2}, "drained": (removal,)})
    report = tmp_path / "fleet" / "demo.json"
    loop(Scripted([STEP, last]), report, []).run()
    content = json.loads(report.read_text())
    assert (content["fleet"], content["run"], content["mode"], content["state"]) == (
        "demo",
        "r1",
        "service",
        "ended",
    )
    assert content["process"] == os.getpid()
    assert content["step"]["at"] == "2026-11-20T12:00:00+00:00"
    assert content["step"]["nodes"] == {"idle": 2}
    assert content["step"]["drained"][0]["reason"] == "idle for 10 minutes"
    assert read_report(report) == content


def test_a_step_that_fails_is_reported_and_the_next_one_follows(tmp_path: Path) -> None:
    messages: list[str] = []
    report = tmp_path / "demo.json"
    scripted = Scripted([FleetError("AWS can't be asked"), STEP])
    reports: list[str] = []
    made = loop(scripted, report, messages)

    def read_and_end() -> None:
        reports.append(report.read_text())
        made.stop()

    scripted.ended = read_and_end
    made.run()
    assert messages == ["this step failed; the next step follows: AWS can't be asked"]
    failing = json.loads(reports[0])
    assert (failing["state"], failing["error"]) == ("failing", "AWS can't be asked")
    assert read_report(report)["error"] == ""  # type: ignore[index]


def test_an_internal_error_is_reported_and_the_next_step_follows(tmp_path: Path) -> None:
    messages: list[str] = []
    report = tmp_path / "demo.json"
    reports: list[str] = []
    scripted = Scripted([KeyError("Price"), STEP])
    made = loop(scripted, report, messages)

    def read_and_end() -> None:
        reports.append(report.read_text())
        made.stop()

    scripted.ended = read_and_end
    made.run()
    assert not scripted.steps
    assert messages[0].startswith("this step failed; the next step follows: Traceback")
    assert "KeyError: 'Price'" in messages[0]
    assert json.loads(reports[0])["error"] == "KeyError: 'Price'"


def test_a_report_that_cant_be_written_does_not_end_the_loop(tmp_path: Path) -> None:
    messages: list[str] = []
    report = tmp_path / "demo.json"
    report.mkdir()  # as a full disk, it takes no report
    scripted = Scripted([STEP, STEP, STEP])
    loop(scripted, report, messages).run()
    assert not scripted.steps
    assert len(messages) == 1
    assert messages[0].startswith("the report can't be written: ")
    assert "demo.json" in messages[0]


def test_a_log_on_a_full_disk_does_not_end_the_loop(tmp_path: Path) -> None:
    scripted = Scripted([FleetError("AWS can't be asked"), KeyError("Price"), STEP])
    with Path("/dev/full").open("w") as full:

        def say(line: str) -> None:
            print(line, file=full, flush=True)

        made = loop(scripted, tmp_path / "demo.json", [])
        made._progress = say
        made.run()
        with pytest.raises(OSError, match="No space left"):
            say("and that is what happens to a line")
        with contextlib.suppress(OSError):
            full.close()
    assert not scripted.steps


def test_a_lock_that_cant_be_made_is_tried_again(tmp_path: Path) -> None:
    messages: list[str] = []
    scripted = Scripted([STEP])
    made = loop(scripted, tmp_path / "demo.json", messages)
    place = default_report("demo").parents[1]
    place.touch()

    def make_room(line: str) -> None:
        messages.append(line)
        place.unlink()

    made._progress = make_room
    made.run()
    assert not scripted.steps
    assert len(messages) == 1
    assert messages[0].startswith("the autoscaler's files can't be made: ")


def test_failing_steps_are_never_further_apart_than_the_longest_pause(tmp_path: Path) -> None:
    failing = Scripted([FleetError("AWS can't be asked")] * 20)
    made = loop(failing, tmp_path / "demo.json", [], longest_pause=0.004)
    pauses: list[float] = []
    made._progress = lambda _: pauses.append(made._until_next())
    made.run()
    assert pauses == [0.002] + [0.004] * 19


def test_an_autoscaler_that_waits_for_its_turn_reports_so(tmp_path: Path) -> None:
    report = tmp_path / "waits.json"
    waiting = loop(Scripted([STEP]), report, [])
    states: list[str] = []

    def on_message(_: str) -> None:
        states.append((read_report(report) or {}).get("state", ""))
        waiting.stop()

    waiting._progress = on_message
    lock = default_report("demo").with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    with lock_file(lock, wait=True):
        waiting.run()
    assert states == ["waiting"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_loop_after_the_step(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    scripted = Scripted([STEP] * 3)
    made = loop(scripted, tmp_path / "demo.json", [])
    scripted.ended = lambda: os.kill(os.getpid(), number)
    made.run()
    assert not scripted.steps
    assert read_report(tmp_path / "demo.json")["state"] == "ended"  # type: ignore[index]
    assert signal.getsignal(number) == before


def test_a_second_autoscaler_of_a_fleet_waits_for_its_turn(tmp_path: Path) -> None:
    messages: list[str] = []
    report = tmp_path / "demo.json"
    first = Scripted([STEP, STEP])
    running = loop(first, report, [])
    second = Scripted([STEP])
    waiting = loop(second, tmp_path / "another run's.json", messages)
    thread = threading.Thread(target=waiting.run)

    def while_the_first_steps() -> None:
        thread.start()
        while not messages:
            thread.join(0.01)
        assert not second.least
        running.stop()

    first.ended = while_the_first_steps
    running.run()
    thread.join(30)
    assert messages == ["another autoscaler of the fleet 'demo' is running"]
    assert second.least == [0]


def test_a_graph_starts_with_its_first_node_and_ends_its_provisioner(tmp_path: Path) -> None:
    joined = Step(**{**vars(STEP), "nodes": {"busy": 1}})
    scripted = Scripted([STEP, STEP, joined, STEP, STEP, STEP])
    graph = ScriptedGraph(looks=3)
    report = tmp_path / "demo.json"
    loop(scripted, report, [], graph=graph).run()
    assert scripted.least == [1, 1, 1, 0, 0]
    assert graph.started == 1
    assert read_report(report)["mode"] == "provisioner"  # type: ignore[index]


def test_a_graph_starts_and_ends_although_no_more_nodes_can_be_launched(tmp_path: Path) -> None:
    with world() as here:
        here.waiting = 1
        here.autoscaler("r1").step()
        here.join()
        here.account.faults.refuse("CreateFleet", "UnauthorizedOperation", status=403)
        here.waiting = 2
        graph = ScriptedGraph(looks=2)
        made = Loop(
            here.autoscaler("r1"),
            fleet="f",
            run="r1",
            report=tmp_path / "run" / "fleet.json",
            graph=graph,  # type: ignore[arg-type]
            progress=lambda line: made.stop() if "this step failed" in line else None,
            pause=0.001,
        )
        made.run()
        assert (graph.started, graph.looks) == (1, 0)


def test_a_provisioner_that_was_killed_asks_for_no_first_node_again(tmp_path: Path) -> None:
    scripted = Scripted([STEP, STEP])
    graph = ScriptedGraph(looks=9, started_before=True)
    loop(scripted, tmp_path / "demo.json", [], graph=graph).run()
    assert scripted.least == [0, 0]
    assert graph.started == 0


def test_a_queue_that_does_not_answer_at_the_start_ends_no_provisioner(tmp_path: Path) -> None:
    messages: list[str] = []
    scripted = Scripted([STEP, STEP])
    graph = ScriptedGraph(looks=9, started_before=PoolError("the schedd does not answer"))
    loop(scripted, tmp_path / "demo.json", messages, graph=graph).run()
    assert scripted.least == [1, 1]
    assert messages == [
        "it is unknown whether the graph was started before: the schedd does not answer"
    ]


def test_reports_have_a_place_of_their_own_for_each_fleet() -> None:
    assert default_report("demo").name == "demo.json"
    assert read_report(Path("/nowhere")) is None
