"""The agent's steps, with a metadata service and an HTCondor that do as the test says."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trialfleet.instance_aws import AwsError, Imds
from trialfleet.nodes.bootstrap.configuration import write_token
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.node_agent import machine
from trialfleet.nodes.node_agent.decisions import Departure, Memory, Startd
from trialfleet.nodes.node_agent.history import Failure
from trialfleet.nodes.node_agent.htcondor_tools import Condor
from trialfleet.nodes.node_agent.notices import ACTION, EXPIRES, REBALANCE, read
from trialfleet.nodes.node_agent.watch import Agent, read_memory, write_memory
from trialfleet.nodes.probe.privileged_readings import PrivilegedReadings

NOW = 1_795_200_000.0  # 2026-11-20T16:00:00Z
NOTICE = json.dumps({"action": "terminate", "time": "2026-11-20T16:02:00Z"})


@dataclass
class Metadata(Imds):
    paths: dict[str, str] = field(default_factory=dict)
    reachable: bool = True
    silent_from: str = ""  # a path: of it and all that are asked for after it

    def get(self, path: str) -> str | None:
        self.reachable = self.reachable and path != self.silent_from
        if not self.reachable:
            raise AwsError(f"instance metadata {path}: timed out")
        return self.paths.get(path)


@dataclass
class StandIn(Condor):
    claimed: int = 1
    draining: str | None = None
    silent: bool = False
    refuses: bool = False
    known: bool = True
    failed: tuple[Failure, ...] = ()
    sick: tuple[str, ...] | None = None
    offline: list[tuple[str, ...]] = field(default_factory=list)

    def read_startd(self) -> Startd | None:
        return None if self.silent else Startd(self.claimed, self.draining, 100.0, self.sick)

    def in_collector(self) -> bool:
        return self.known

    def drain(self, reason: str, *, only_idle: bool = False) -> None:
        if self.refuses or (only_idle and self.claimed):
            raise StepError("condor_drain exits 1: refused")
        self.draining, self.claimed = reason, 0

    def take_offline(self, gpus: Sequence[str]) -> None:
        if self.refuses:
            raise StepError("condor_reconfig exits 1: refused")
        self.offline.append(tuple(gpus))

    def bandwidths(self) -> dict[str, tuple[float, ...]]:
        return {"NVIDIA L4": (250.0,)}

    def failures(self) -> tuple[Failure, ...]:
        return self.failed

    def starter_lives(self) -> bool:
        return self.claimed > 0


class Node:
    """A node whose clock moves only by the test."""

    def __init__(self, folder: Path) -> None:
        self.metadata, self.condor = Metadata(), StandIn()
        self.state = folder / "state" / "agent.json"
        self.time = 0.0
        self.wrong = 0.0  # the wall clock's error in seconds
        self.cancelled = 0
        self.off: list[str] = []
        self.readings: list[PrivilegedReadings] = []
        self.switch_works = True
        self.fence = "stands"  # or "gone"; or why it can't be raised
        self.host = Host(folder)

    def agent(self) -> Agent:
        return Agent(
            self.metadata,
            self.condor,
            10.0,
            self.state,
            clock=lambda: datetime.fromtimestamp(NOW + self.time + self.wrong, UTC),
            uptime=lambda: 5_000 + self.time,
            cancel_switch=self._cancel,
            power_off=self.off.append,
            tell_probe=self.readings.append,
            raise_fence=self._raise_fence,
            token_expiry=lambda: machine.token_expiry(self.host),
        )

    def _raise_fence(self, _host: Host) -> bool:
        if self.fence not in {"stands", "gone"}:
            raise StepError(self.fence)
        gone, self.fence = self.fence == "gone", "stands"
        return gone

    def _cancel(self) -> None:
        if not self.switch_works:
            raise StepError("shutdown: no such file")
        self.cancelled += 1


@pytest.fixture
def node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Node:
    caplog.set_level(logging.INFO)
    return Node(tmp_path)


def test_a_notice_drains_in_the_step_that_reads_it(node: Node) -> None:
    agent = node.agent()
    agent.step()
    node.metadata.paths[ACTION] = NOTICE
    agent.step()
    assert node.condor.draining == "spot interruption: terminate at 2026-11-20T16:02:00Z"


def test_the_nodes_token_is_read_and_its_end_drains_the_node(node: Node) -> None:
    agent = node.agent()
    for text in ("", "no token", "a.b.c", f"a.{encoded([])}.c", f"a.{encoded({'exp': 'soon'})}.c"):
        write_token(node.host, text)
        agent.step()
    write_token(node.host, f"a.{encoded({'exp': NOW + 2, 'sub': 'node@trialfleet'})}.c")
    agent.step()
    assert node.condor.draining is None
    node.time = 3
    agent.step()
    assert (node.condor.draining or "").startswith(
        "the node's token expired at 2026-11-20T18:40:02Z"
    )
    agent.step()
    assert node.off == [node.condor.draining]


def encoded(payload: object) -> str:
    """Return a part of a token, as HTCondor writes it: without padding."""
    return base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")


def test_a_notice_counts_although_the_metadata_become_unreachable(node: Node) -> None:
    node.metadata.paths[ACTION], node.metadata.silent_from = NOTICE, REBALANCE
    node.agent().step()
    assert node.condor.draining == "spot interruption: terminate at 2026-11-20T16:02:00Z"


def test_a_refused_drain_is_retried(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    agent = node.agent()
    node.metadata.paths[REBALANCE] = json.dumps({"noticeTime": "2026-11-20T16:00:00Z"})
    node.condor.refuses = True
    agent.step()
    assert node.condor.draining is None
    assert "the node can't be drained: condor_drain exits 1: refused" in caplog.text
    node.condor.refuses = False
    agent.step()
    assert node.condor.draining == "rebalance recommendation of 2026-11-20T16:00:00Z"


@pytest.mark.parametrize("wrong", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong_for_a_moment_ends_no_lease(node: Node, wrong: float) -> None:
    agent = node.agent()
    node.metadata.paths[EXPIRES] = datetime.fromtimestamp(NOW + 600, UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    for node.wrong in (0.0, wrong, wrong, 0.0, 0.0):
        node.time += 15
        agent.step()
    assert node.condor.draining is None
    node.time += 600
    agent.step()
    assert str(node.condor.draining).startswith("lease expired")


def test_an_expired_lease_drains_first_and_then_switches_off(node: Node) -> None:
    agent = node.agent()
    node.metadata.paths[EXPIRES] = "2026-11-20T16:00:00Z"
    node.time = (read(node.metadata).expires or 0) - NOW
    assert not agent.step()
    assert node.condor.draining
    assert agent.step()
    assert len(node.off) == 1
    assert node.off[0].startswith("lease expired at 2026-11-20T16:00:00Z")


def test_without_metadata_the_last_known_lease_holds(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    agent = node.agent()
    node.metadata.paths[EXPIRES] = "2026-11-20T16:00:00Z"
    node.time = (read(node.metadata).expires or 0) - NOW - 1
    agent.step()
    node.metadata.reachable = False
    agent.step()
    assert node.condor.draining is None
    assert caplog.text.count("timed out") == 1
    node.time += 1
    agent.step()
    assert str(node.condor.draining).startswith("lease expired")
    assert caplog.text.count("timed out") == 1


def test_an_invalid_lease_tag_is_reported_and_changes_nothing(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.metadata.paths[EXPIRES] = "tomorrow"
    node.agent().step()
    assert "trialfleet:expires is not a time: 'tomorrow'" in caplog.text
    assert node.condor.draining is None


def test_an_unknown_notice_still_counts(node: Node) -> None:
    node.metadata.paths[ACTION] = "<html>\nsoon"
    node.agent().step()
    assert node.condor.draining == "spot interruption: <html> soon"


def test_the_dead_mans_switch_is_cancelled_once(node: Node) -> None:
    agent = node.agent()
    node.condor.known = False
    agent.step()
    assert node.cancelled == 0
    node.condor.known = True
    agent.step()
    agent.step()
    node.agent().step()
    assert node.cancelled == 1


def test_the_cancellation_of_the_switch_is_retried(node: Node) -> None:
    agent = node.agent()
    node.switch_works = False
    agent.step()
    node.switch_works = True
    agent.step()
    assert node.cancelled == 1


def test_a_restarted_agent_continues_from_its_stored_state(node: Node) -> None:
    node.condor.claimed = 0
    node.metadata.paths[EXPIRES] = "2026-11-21T16:00:00Z"
    node.agent().step()
    node.metadata.reachable = False
    node.time = 600
    agent = node.agent()  # idle since before it was started
    agent.step()
    assert node.condor.draining == "idle for 10 minutes"
    assert node.agent().step()
    assert node.off == ["idle for 10 minutes"]
    assert (
        read_memory(node.state).expires == read(Metadata({EXPIRES: "2026-11-21T16:00:00Z"})).expires
    )


def test_a_job_that_arrives_just_before_the_drain_keeps_an_idle_node(node: Node) -> None:
    agent = node.agent()
    node.condor.claimed = 0
    agent.step()
    node.time = 600
    look = node.condor.read_startd

    def late_look() -> Startd | None:  # the job comes between look and drain
        found = look()
        node.condor.claimed = 1
        return found

    node.condor.read_startd = late_look  # type: ignore[method-assign]
    agent.step()
    assert node.condor.draining is None
    for _ in range(3):
        agent.step()
    assert node.condor.draining is None
    assert node.off == []


def test_an_unreachable_startd_is_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    agent = node.agent()
    node.condor.silent = True
    agent.step()
    agent.step()
    node.condor.silent = False
    agent.step()
    assert caplog.text.count("the startd does not answer") == 1
    assert caplog.text.count("the startd answers") == 1


def test_a_node_drains_although_its_state_cannot_be_written(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.state.parent.write_text("a file where a folder should be")
    node.metadata.paths[ACTION] = NOTICE
    node.agent().step()
    assert "can't be written" in caplog.text
    assert node.condor.draining is not None


DAMAGED: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(missing_ok=True),
    "half written": lambda path: path.write_text('{"joined": true'),
    "of another kind": lambda path: path.write_text("[1]"),
    "of another version": lambda path: path.write_text('{"leaving": null, "later": 1}'),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_state_file_is_replaced_by_an_empty_state(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    damage(tmp_path / "agent.json")
    assert read_memory(tmp_path / "agent.json") == Memory()


def test_a_saved_state_is_restored_unchanged(tmp_path: Path) -> None:
    full = Memory(
        joined=True,
        expires=1.5,
        idle_since=2.0,
        leaving=Departure("idle", "why", 3.0),
        failures_reset=4.0,
    )
    write_memory(tmp_path / "new" / "agent.json", full)
    assert read_memory(tmp_path / "new" / "agent.json") == full


def test_a_gpu_that_cannot_be_taken_offline_is_tried_again(node: Node) -> None:
    agent, node.condor.sick, node.condor.refuses = node.agent(), ("GPU-1",), True
    agent.step()
    assert node.condor.offline == []
    node.condor.refuses = False
    agent.step()
    agent.step()
    assert node.condor.offline == [("GPU-1",)]


def test_an_agent_that_was_restarted_remembers_which_gpus_are_offline(node: Node) -> None:
    node.condor.sick = ("GPU-1", "GPU-2")
    node.agent().step()
    node.agent().step()
    assert node.condor.offline == [("GPU-1", "GPU-2")]


def test_the_probe_gets_readings_when_the_node_joins_and_every_five_minutes(
    node: Node,
) -> None:
    agent, node.condor.known = node.agent(), False
    agent.step()
    assert node.readings == []
    node.condor.known = True
    for node.time in (1, 2, 299, 302, 303):
        agent.step()
    assert [reading.pool for reading in node.readings] == [{"NVIDIA L4": (250.0,)}] * 2


def test_a_missing_fence_is_restored_and_reported(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    agent = node.agent()
    agent.step()
    node.fence = "gone"
    for node.time in (1, 9, 10, 11):
        agent.step()
    assert node.fence == "stands"
    assert caplog.text.count("the routing rule against this was added again") == 1
    assert node.condor.draining is None


def test_a_node_whose_fence_cannot_be_raised_drains_and_says_why(node: Node) -> None:
    agent = node.agent()
    agent.step()
    node.fence, node.time = "jobs could reach the instance's metadata: no ip", 10
    agent.step()
    assert node.condor.draining == node.fence
    node.fence, node.time = "stands", 20
    agent.step()
    assert node.condor.draining is not None, "what happened meanwhile is worth a look"
