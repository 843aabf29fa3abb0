from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fleet.nodes_at_hand import NOW
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.autoscaler import Step
from trialfleet.infra.fleet.scaling import Removal
from trialfleet.infra.fleet.scaling_loop import Loop, default_report, read_report

STEP = Step(at=NOW, nodes={}, waiting=0, running=0, price_per_hour=0, spent=0, since=NOW)


@dataclass
class Scripted:
    """An autoscaler whose steps are known beforehand; the last one ends the loop."""

    steps: list[Step | Exception]
    least: list[int] = field(default_factory=list)
    ended: Callable[[], None] = lambda: None

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

    def start(self) -> None:
        self.started += 1

    def over(self) -> bool:
        self.looks -= 1
        return self.looks == 0


def loop(scripted: Scripted, report: Path, said: list[str], **more: object) -> Loop:
    made = Loop(
        scripted,  # type: ignore[arg-type]
        fleet="demo",
        run="r1",
        report=report,
        lock=report.parent / "lock",
        progress=said.append,
        pause=0.001,
        **more,  # type: ignore[arg-type]
    )
    scripted.ended = made.stop
    return made


def test_each_step_is_reported_for_people(tmp_path: Path) -> None:
    removal = Removal(instance="i-1", reason="idle for 10 minutes", only_idle=True)
    last = Step(**{**vars(STEP), "nodes": {"idle": 2}, "drained": (removal,)})
    report = tmp_path / "fleet" / "demo.json"
    loop(Scripted([STEP, last]), report, []).run()
    told = json.loads(report.read_text())
    assert (told["fleet"], told["run"], told["mode"], told["state"]) == (
        "demo",
        "r1",
        "service",
        "ended",
    )
    assert told["process"] == os.getpid()
    assert told["step"]["at"] == "2026-11-20T12:00:00+00:00"
    assert told["step"]["nodes"] == {"idle": 2}
    assert told["step"]["drained"][0]["reason"] == "idle for 10 minutes"
    assert read_report(report) == told


def test_a_step_that_fails_is_reported_and_the_next_one_follows(tmp_path: Path) -> None:
    said: list[str] = []
    report = tmp_path / "demo.json"
    scripted = Scripted([FleetError("AWS can't be asked"), STEP])
    reports: list[str] = []
    made = loop(scripted, report, said)

    def read_and_end() -> None:
        reports.append(report.read_text())
        made.stop()

    scripted.ended = read_and_end
    made.run()
    assert said == ["this step failed, the next follows: AWS can't be asked"]
    failing = json.loads(reports[0])
    assert (failing["state"], failing["error"]) == ("failing", "AWS can't be asked")
    assert read_report(report)["error"] == ""  # type: ignore[index]


def test_a_mistake_of_the_programs_own_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        loop(Scripted([AssertionError()]), tmp_path / "demo.json", []).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_step(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    scripted = Scripted([STEP] * 3)
    made = loop(scripted, tmp_path / "demo.json", [])
    scripted.ended = lambda: os.kill(os.getpid(), number)
    made.run()
    assert not scripted.steps
    assert read_report(tmp_path / "demo.json")["state"] == "ended"  # type: ignore[index]
    assert signal.getsignal(number) == before


def test_a_second_autoscaler_of_a_fleet_waits_for_its_turn(tmp_path: Path) -> None:
    said: list[str] = []
    report = tmp_path / "demo.json"
    first = Scripted([STEP, STEP])
    running = loop(first, report, [])
    second = Scripted([STEP])
    waiting = loop(second, tmp_path / "another run's.json", said)
    thread = threading.Thread(target=waiting.run)

    def while_the_first_steps() -> None:
        thread.start()
        while not said:
            thread.join(0.01)
        assert not second.least
        running.stop()

    first.ended = while_the_first_steps
    running.run()
    thread.join(30)
    assert said == ["another autoscaler of the fleet 'demo' is at work"]
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


def test_reports_have_a_place_of_their_own_for_each_fleet() -> None:
    assert default_report("demo").name == "demo.json"
    assert read_report(Path("/nowhere")) is None
