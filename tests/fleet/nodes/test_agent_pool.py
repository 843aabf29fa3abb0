"""The node's agent with a real startd: draining, its reason in the ad, and ended jobs."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.node_stand_ins import IP
from tests.pool.conftest import make_pool, session_folder, work  # noqa: F401
from tests.pool.watching import active
from tests.unit.nodes.test_bootstrap_host import TOLD
from trialfleet.infra.pool.collector import read_machines
from trialfleet.infra.pool.embedded import Pool
from trialfleet.nodes.bootstrap.host import StepError
from trialfleet.nodes.node_agent.htcondor_tools import Condor, query, run
from trialfleet.nodes.node_agent.notices import ACTION, EXPIRES
from trialfleet.nodes.node_agent.watch import Agent

pytestmark = pytest.mark.pool

# The same as in a node's configuration.
NODE = """
STARTD_HISTORY = $(LOG)/startd_history
TrialfleetNote = DrainReason ?: ""
STARTD_ATTRS = $(STARTD_ATTRS) TrialfleetNote
"""
COUNTS = """\
#!/bin/bash
touch checkpoint
trap 'echo saved >> checkpoint; exit 85' TERM
while sleep 0.1; do :; done
"""
NUMBERS = itertools.count()
NOTICE = json.dumps({"action": "terminate", "time": "2026-11-20T16:02:00Z"})


class Node:
    """The agent of a pool's one machine, with a clock that may be put forward."""

    def __init__(self, state: Path) -> None:
        self.metadata: dict[str, str] = {}
        self.condor = Condor()
        self.later = 0.0
        self.cancelled = 0
        self.off: list[str] = []
        self.agent = Agent(
            self.metadata,  # type: ignore[arg-type]
            self.condor,
            10.0,
            state,
            uptime=lambda: time.monotonic() + self.later,
            cancel_switch=self._cancel,
            power_off=self.off.append,
            tell_probe=lambda _: None,
            raise_fence=lambda _: False,
        )

    def _cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def node(make_pool: Callable[..., Pool], tmp_path: Path) -> Iterator[Node]:  # noqa: F811
    with active(make_pool(extra=NODE, cpus=4)):
        yield Node(tmp_path / "agent.json")


def submit(work: Path, script: str, number: int = 1, more: str = "") -> str:  # noqa: F811
    """Submit jobs that run a script; return the cluster's number."""
    program = work / f"{next(NUMBERS)}.sh"
    program.write_text(script)
    program.chmod(0o755)
    description = program.with_suffix(".sub")
    description.write_text(
        f"executable = {program}\nlog = {work}/log\nrequest_cpus = 1\nrequest_memory = 50\n"
        "request_disk = 1000\nshould_transfer_files = YES\nkill_sig = SIGTERM\n"
        f"when_to_transfer_output = ON_EXIT_OR_EVICT\ncheckpoint_exit_code = 85\n{more}"
        f"queue {number}\n"
    )
    return run("condor_submit", "-terse", str(description)).split(".")[0]


def notes() -> list[str]:
    """Return the notes of the collector's ads, evaluated: in the ad a note is an expression."""
    return run("condor_status", "-af", "TrialfleetNote").splitlines()


def jobs(cluster: str) -> list[dict[str, Any]]:
    return query(["condor_q", cluster, "-json"])


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.1)


def runs(cluster: str, number: int = 1) -> bool:
    return [job["JobStatus"] for job in jobs(cluster)] == [2] * number


def test_a_spot_notice_evicts_the_job_with_its_checkpoint_and_is_in_the_ad(
    node: Node,
    work: Path,  # noqa: F811
) -> None:
    cluster = submit(work, COUNTS, more="transfer_checkpoint_files = checkpoint\n")
    until(lambda: runs(cluster))
    time.sleep(1)  # let the script set its trap
    node.agent.step()
    assert node.cancelled == 1  # the startd answers and is in the collector
    node.metadata[ACTION] = NOTICE
    began = time.monotonic()
    node.agent.step()
    until(lambda: jobs(cluster)[0]["JobStatus"] == 1, seconds=20)
    took = time.monotonic() - began
    print(f"from the notice to the job's return to the queue: {took:.2f} s")
    until(lambda: notes() == ["spot interruption: terminate at 2026-11-20T16:02:00Z"])
    spooled = subprocess.run(
        ["condor_config_val", "SPOOL"], capture_output=True, text=True, check=True
    ).stdout.strip()
    saved = [path.read_text() for path in Path(spooled).rglob("checkpoint") if path.is_file()]
    assert saved == ["saved\n"]
    node.agent.step()
    assert node.off == []  # AWS ends the instance
    assert node.condor.failures() == ()  # an eviction is no failure


def test_three_jobs_that_fail_drain_the_node_and_those_that_were_sent_away_do_not(
    node: Node,
    work: Path,  # noqa: F811
) -> None:
    sent_away = submit(work, "#!/bin/bash\ntrap 'exit 5' TERM\nwhile sleep 0.1; do :; done\n", 3)
    until(lambda: runs(sent_away, 3))
    time.sleep(1)
    run("condor_rm", sent_away)
    until(lambda: not jobs(sent_away))
    until(lambda: not node.condor.read_startd().held)  # type: ignore[union-attr]
    run("condor_wait", "-wait", "30", f"{work}/log", submit(work, "#!/bin/sh\nexit 64\n", 3))
    node.agent.step()
    assert node.condor.failures() == ()
    assert node.condor.read_startd().draining is None  # type: ignore[union-attr]

    number = submit(work, "#!/bin/sh\nexit 1\n", 2)
    crashes = submit(work, "#!/bin/sh\nkill -SEGV $$\n", 1)
    run("condor_wait", "-wait", "60", f"{work}/log")
    until(lambda: len(node.condor.failures()) == 3)
    node.agent.step()
    note = node.condor.read_startd().draining  # type: ignore[union-attr]
    assert note is not None
    assert note.startswith("3 jobs failed here within 60 s: ")
    for part in (
        f"{number}.0 (exit code 1)",
        f"{number}.1 (exit code 1)",
        f"{crashes}.0 (killed by signal 11)",
    ):
        assert part in note
    until(lambda: notes() == [note])
    node.agent.step()
    assert node.off == []

    run("condor_drain", "-cancel", address())  # somebody repaired the node
    node.agent.step()
    assert node.condor.read_startd().draining is None  # type: ignore[union-attr]


def address() -> str:
    path = run("condor_config_val", "STARTD_ADDRESS_FILE").strip()
    return Path(path).read_text().splitlines()[0]


def test_an_idle_node_drains_on_condition_that_no_job_has_come(
    node: Node,
    work: Path,  # noqa: F811
) -> None:
    cluster = submit(work, COUNTS)
    until(lambda: runs(cluster))
    with pytest.raises(StepError, match="condor_drain"):
        node.condor.drain("idle", only_idle=True)
    node.agent.step()
    node.later = 6_000
    node.agent.step()
    assert runs(cluster)
    assert node.condor.read_startd().draining is None  # type: ignore[union-attr]

    run("condor_rm", cluster)
    until(lambda: not node.condor.read_startd().held)  # type: ignore[union-attr]
    node.agent.step()
    node.later += 600
    node.agent.step()
    assert node.off == []
    assert node.condor.read_startd().draining == "idle for 10 minutes"  # type: ignore[union-attr]
    node.agent.step()
    assert node.off == ["idle for 10 minutes"]


def test_a_slot_that_keeps_common_files_does_not_prevent_the_nodes_end(
    node: Node,
    work: Path,  # noqa: F811
) -> None:
    shared = work / "common.bin"
    shared.write_bytes(b"data")
    cluster = submit(work, COUNTS, more=f"transfer_common_input = {shared}\n")
    until(lambda: runs(cluster))
    until(lambda: read_machines("true")[0].idle_since is None)
    run("condor_rm", cluster)
    until(lambda: not jobs(cluster))
    look = node.condor.read_startd
    until(lambda: not look().held)  # type: ignore[union-attr]
    kept = query(["condor_status", "-json", "-direct", address()])
    assert [slot["State"] for slot in kept if slot.get("IsDataSlot")] == ["Claimed"]
    until(lambda: read_machines("true")[0].idle_since is not None)
    node.agent.step()
    node.later = 600
    node.agent.step()
    assert look().draining == "idle for 10 minutes"  # type: ignore[union-attr]
    node.agent.step()
    assert node.off == ["idle for 10 minutes"]


def test_a_startd_that_is_restarted_drains_again(node: Node) -> None:
    node.metadata[ACTION] = NOTICE
    node.agent.step()
    node.agent.step()
    first = node.condor.read_startd()
    assert first is not None
    run("condor_restart", "-startd", "-fast")

    def second_drains() -> bool:
        node.agent.step()
        now = node.condor.read_startd()
        return now is not None and now.started != first.started and now.draining is not None

    until(second_drains)


class Imds(BaseHTTPRequestHandler):
    """A metadata service of version 2 that tells what the test wants."""

    paths: ClassVar[dict[str, str]] = {}

    def do_PUT(self) -> None:
        self._answer("token")

    def do_GET(self) -> None:
        known = self.headers["X-aws-ec2-metadata-token"] == "token"
        self._answer(self.paths.get(self.path.removeprefix("/latest/")) if known else None)

    def _answer(self, text: str | None) -> None:
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Imds)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
    monkeypatch.setattr(Imds, "paths", {})
    yield Imds.paths
    server.shutdown()
    server.server_close()


def test_the_agent_continues_after_kill_9_and_ends_the_machine_whose_lease_is_over(
    make_pool: Callable[..., Pool],  # noqa: F811
    work: Path,  # noqa: F811
    imds: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutdowns = work / "shutdowns"
    stand_in = work / "shutdown"
    stand_in.write_text(f'#!/bin/sh\necho "$*" >> {shutdowns}\n')
    stand_in.chmod(0o755)
    (work / "ip").write_text(f"#!/bin/sh\nROOT={work}\n{IP}")
    (work / "ip").chmod(0o755)
    monkeypatch.setenv("TRIALFLEET_NODE_ROOT", str(work))
    settings = work / "opt/trialfleet/settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({**TOLD, "idle_minutes": 0}))
    command = [sys.executable, "-m", "trialfleet.nodes.node_agent"]

    def past() -> str:
        return shutdowns.read_text() if shutdowns.exists() else ""

    with active(make_pool(extra=NODE)), (work / "log").open("w") as log:
        monkeypatch.setenv("PATH", str(work), prepend=":")
        imds[EXPIRES] = "2999-01-01T00:00:00Z"
        first = subprocess.Popen(command, stdout=log)
        try:
            until(lambda: past() == "-c\n")
            until((work / "run/trialfleet/agent.json").exists)
        finally:
            first.kill()
            first.wait()
        imds[EXPIRES] = "2020-01-01T00:00:00Z"
        second = subprocess.run(command, stdout=log, timeout=60)
    assert second.returncode == 0
    reason = "lease expired at 2020-01-01T00:00:00Z: the manager has not renewed it"
    assert past() == f"-c\n-P now trialfleet: {reason}\n"
    output = (work / "log").read_text().splitlines()
    cancelled = "the shutdown scheduled at boot is cancelled"
    for words in (cancelled, f"draining: {reason}", "shutting down: "):
        (line,) = (line for line in output if f"agent: {words}" in line)
        assert re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line)
