"""Agents of a gang together with its keeper, without HTCondor; and their use of chirp."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.moto_server import moto_server, s3_with_bucket
from tests.unit.nodes.chirp_server import ChirpServer
from trialfleet import nodes
from trialfleet.files import write_json
from trialfleet.nodes import CHECKPOINT
from trialfleet.nodes.gang.packages import Package
from trialfleet.nodes.gang.roster import Roster as AgentsRoster
from trialfleet.nodes.gang.s3_checkpoints import LINKS, find_link, parse_pointer
from trialfleet.nodes.gang.workers import find_script
from trialfleet.nodes.job import archive
from trialfleet.nodes.job.chirp import Chirp, ChirpError
from trialfleet.nodes.job.chirp_access import Channel
from trialfleet.workflows.control.gang.checkpoint_urls import GangStore
from trialfleet.workflows.control.gang.keeper import Keeper
from trialfleet.workflows.facts.jobs.agent_messages import (
    AgentMessage,
    read_last_message,
    read_order,
)
from trialfleet.workflows.facts.jobs.gang_records import read_roster
from trialfleet.workflows.facts.jobs.gang_roster import RUN, Roster
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.status.attempts.outcome import settle_attempt

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


FOLDER = str(next(iter(nodes.__path__)))


@pytest.fixture
def access_point(tmp_path: Path) -> Iterator[ChirpServer]:
    folder = tmp_path / "access point"
    (folder / "words" / "gang").mkdir(parents=True)
    with ChirpServer(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def chirp(access_point: ChirpServer) -> Iterator[Chirp]:
    with closing(Chirp(*access_point.address)) as found:
        yield found


def upload(chirp: Chirp, content: bytes) -> None:
    with chirp.open_upload("a") as send:
        send(content)


def test_files_go_to_the_access_point_and_back(chirp: Chirp, access_point: ChirpServer) -> None:
    assert chirp.read("no such file") is None
    chirp.write("a file", b"words")
    assert chirp.read("a file") == b"words"
    large = [os.urandom(1_000_000) for _ in range(3)]
    with chirp.open_upload("large.part") as send:
        for block in large:
            send(block)
            assert chirp.read("a file") == b"words", "it can be spoken meanwhile"
    chirp.rename("large.part", "large")
    assert b"".join(chirp.blocks("large")) == b"".join(large)
    assert not (access_point.folder / "large.part").exists()


def test_empty_files_are_made_without_writing_0_bytes(
    chirp: Chirp, access_point: ChirpServer
) -> None:
    sends: list[Callable[[], None]] = [
        lambda: chirp.write("a", b""),
        lambda: chirp.write_at("a", b"", 0),
        lambda: upload(chirp, b""),
    ]
    for send in sends:
        (access_point.folder / "a").write_bytes(b"what was there")
        send()
        assert (access_point.folder / "a").read_bytes() == b""
        assert chirp.read("a") == b""
    (access_point.folder / "a").write_bytes(b"what was there")
    chirp.write_at("a", b"", 4)
    assert (access_point.folder / "a").read_bytes() == b"what was there"
    assert access_point.kills == 0


def test_a_refusal_is_an_error_and_the_next_request_is_answered(
    chirp: Chirp, access_point: ChirpServer
) -> None:
    with pytest.raises(ChirpError, match="open"):
        list(chirp.blocks("missing"))
    access_point.is_full = True
    with pytest.raises(ChirpError, match="-6"):
        chirp.write("a", b"x")
    with pytest.raises(ChirpError, match="-6"):
        upload(chirp, b"x")
    access_point.is_full = False
    chirp.write("a", b"x")
    assert chirp.read("a") == b"x"


@pytest.mark.parametrize("text", [None, b"", b"[]", b"{", b"[" * 100_000, b'{"put": 1}'])
def test_damaged_files_of_the_keeper_count_as_missing(text: bytes | None) -> None:
    assert AgentsRoster.from_json(text, 5) is None
    assert find_link(text, "put", "a.tar") is None


def test_only_a_script_of_this_very_python_is_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{tmp_path}")
    other = tmp_path / "python9"
    other.symlink_to(sys.executable)  # as an environment's
    assert find_script([sys.executable, "train.py", "-v"]) == ["train.py", "-v"]
    assert find_script(["python", "train.py"]) == ["train.py"]
    for words in (["python9", "train.py"], ["python", "-m", "x.py"], ["sh", "x.sh"], ["python"]):
        assert find_script(words) == []


def test_a_process_outside_a_job_gets_no_channel(
    access_point: ChirpServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("_CONDOR_CHIRP_CONFIG", raising=False)
    with pytest.raises(OSError, match="want_io_proxy"):
        Channel.take()
    host, port, cookie = access_point.address
    with pytest.raises(ChirpError, match="cookie"):
        Chirp(host, port, f"not {cookie}").read("x")


TRAIN = """\
import json, os, time
from pathlib import Path
import trial
t = trial.start()
saved = t.restore()
step = int((saved / "step").read_text()) if saved else 0
print(f"rank {t.rank} of {t.world}, generation {t.generation}, step {step}", flush=True)
while not Path(t.params["gate"]).exists():
    step += 1
    time.sleep(0.05)
    if t.rank == 0 and t.should_checkpoint():
        with t.checkpoint() as folder:
            (folder / "step").write_text(str(step))
        if t.interrupted:
            t.yield_node()
t.complete(loss=step)
"""


class Gang:
    """Agents in folders of their own, and a keeper to which they are jobs that run."""

    def __init__(
        self, access_point: ChirpServer, folder: Path, store: GangStore | None = None
    ) -> None:
        self.place = TrialFolder(access_point.folder)
        self.gate = folder / "gate"
        self.is_killed = False  # the keeper, again and again
        self._server, self._folder, self._store = access_point, folder, store
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._keeper = Keeper(RunFolder(folder), store)
        self.order()

    def order(self, memory_mb: float | None = None, **more: Any) -> None:
        """Write the order that the service writes before the jobs are submitted."""
        gate = self.gate.with_name(str(more.get("name", self.gate.name)))
        params = {"gate": str(gate), "checkpoint_seconds": 0.3, "words": "x" * 10_000}
        trial = {"params": params, "objective": {"metric": "loss"}, "mode": "tune"}
        frame = {"schema": 1, "token": "", "turn": 0, "do": "train", "last": True, "left": []}
        own = {"name": self.place.root.name, "trial": trial, "memory_mb": memory_mb}
        write_json(self.place.order, {**frame, **own, **more})

    def answers(self, what: str, **more: Any) -> AgentMessage:
        """Answer what the gang says next, as the service does; return that."""
        before = read_order(self.place)

        def is_new() -> bool:
            said = read_last_message(self.place)
            return said is not None and before is not None and said.turn.number > before.turn

        self.keep(is_new)
        said = read_last_message(self.place)
        assert said is not None
        self.order(token=said.turn.token, turn=said.turn.number, do=what, last=False, **more)
        return said

    @property
    def recorded(self) -> AgentMessage:
        """The keeper's answer, and the files that the trial left in its place."""
        said = read_last_message(self.place)
        assert said is not None
        settle_attempt(self.place, 0)
        return said

    @property
    def roster(self) -> Roster:
        return read_roster(self.place) or Roster(cluster=5)

    def start(self, proc: int, program: str = TRAIN) -> None:
        box = self._folder / f"box{proc}"
        box.mkdir()
        archive.build(box / "agent.pyz")
        (box / "train.py").write_text(program)
        variables = {
            "PYTHONPATH": FOLDER,
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TRIALFLEET_GANG": f"5.{proc}",
            "_CONDOR_CHIRP_CONFIG": str(self._server.write_config(box)),
        }
        with (box / "agent.log").open("wb") as log:
            self.agents[proc] = subprocess.Popen(
                [sys.executable, "-I", "-S", "agent.pyz", "--", "python3", "train.py"],
                cwd=box,
                env={**os.environ, **variables},
                stdout=log,
                stderr=log,
            )

    def keep(self, until: Callable[[], bool]) -> None:
        """Decide until something holds."""
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline, self.roster
            time.sleep(0.1)
            if self.is_killed:
                self._keeper = Keeper(RunFolder(self._folder), self._store)
            self._keeper._keep(5, [self._ad(proc) for proc in self.agents])

    def _ad(self, proc: int) -> dict[str, Any]:
        """Return a job's ad, as HTCondor's queue would have it."""
        return {
            "ClusterId": 5,
            "ProcId": proc,
            "Iwd": str(self.place.root),
            "JobStatus": 2 if self.agents[proc].poll() is None else 4,
            "RequestDisk": 100_000,
            "EnteredCurrentStatus": time.time() - 1,
            "TrialfleetNode": "A.l1.t01",
            "TrialfleetGangMin": 2,
            "TrialfleetGangMax": 3,
        }

    def wait_long(self) -> None:
        """Have this state of the roster last for long already."""
        long_ago = {**self.roster.to_json(), "since": 0.0}
        self.place.roster.write_text(json.dumps(long_ago))

    def checkpoints(self) -> list[Path]:
        return sorted(self.place.gang.glob("checkpoint.*.tar"))

    def trains(self, ranks: int, generation: int) -> bool:
        now = self.roster
        return (now.state, len(now.members), now.generation) == (RUN, ranks, generation)

    def log(self, proc: int) -> str:
        return (self._folder / f"box{proc}/agent.log").read_text()

    def box(self, proc: int, trial: str = "") -> Path:
        """Return the trial's folder of a rank."""
        return self._folder / f"box{proc}/trials/{trial or self.place.root.name}"

    def words(self, proc: int, trial: str = "") -> list[str]:
        """Return the output of its rank in the present generation; rank 0's of all generations."""
        out = self.box(proc, trial) / "out"
        return out.read_text().splitlines() if out.exists() else []

    def has_begun(self, rank: int) -> bool:
        """Return whether a rank has printed a line.

        A checkpoint contains rank 0's output, which is in this file until the rank begins.
        """
        return any(line.startswith(f"rank {rank} of ") for line in self.words(rank))


@contextmanager
def running(gang: Gang) -> Iterator[Gang]:
    """Give the gang; no agent of it is left."""
    try:
        yield gang
    finally:
        for agent in gang.agents.values():
            agent.kill()
            agent.wait()


@pytest.fixture
def gang(access_point: ChirpServer, tmp_path: Path) -> Iterator[Gang]:
    with running(Gang(access_point, tmp_path)) as found:
        yield found


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    """S3 as moto has it, with a bucket."""
    with moto_server() as address:
        yield s3_with_bucket(address, "ours", monkeypatch)


@pytest.mark.slow
def test_ranks_join_leave_and_end(gang: Gang) -> None:
    for proc in (0, 1):
        gang.start(proc)
    gang.keep(lambda: gang.trains(2, 1) and bool(gang.checkpoints()))
    gang.start(2)
    gang.wait_long()
    gang.keep(lambda: gang.trains(3, 2))
    assert gang.roster.start is not None
    gang.keep(lambda: gang.has_begun(2))
    step = int(gang.words(2)[0].rpartition(" ")[2])
    assert gang.words(2) == [f"rank 2 of 3, generation 2, step {step}"]
    assert step > 0, "rank 0 saved, and it began there"
    gang.agents[0].send_signal(signal.SIGTERM)  # an eviction
    gang.keep(lambda: gang.trains(2, 3) and gang.agents[0].poll() is not None)
    assert gang.agents[0].returncode == 85
    gang.keep(lambda: "generation 3" in "".join(gang.words(1)))
    assert int(gang.words(1)[-1].rpartition(" ")[2]) >= step
    gang.gate.touch()
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert (gang.agents[1].returncode, gang.agents[2].returncode) == (0, 0)
    assert (gang.recorded.say, gang.recorded.ended.code, gang.recorded.trial) == (
        "ended",
        0,
        gang.place.root.name,
    )
    assert gang.recorded.job == "5.1"
    assert (gang.recorded.ended.memory_mb or 0) > 1
    said = [line.split()[5] for line in gang.place.out.read_text().splitlines()]
    assert (said[0], said[-1]) == ("1,", "3,"), "what rank 0 printed goes on with the checkpoint"
    assert json.loads(gang.place.result.read_text())["status"] == "complete"


@pytest.mark.slow
def test_rank_0_gets_an_order_to_stop_early(gang: Gang) -> None:
    gang.order(grace_seconds=60)
    stops = TRAIN.replace('["gate"]).exists():', '["gate"]).exists() and not t.should_stop():')
    for proc in (0, 1):
        gang.start(proc, stops)
    gang.keep(lambda: gang.trains(2, 1) and gang.has_begun(0))
    write_json(gang.place.stop, {"trial": gang.place.root.name, "predicted": 1.0})
    gang.keep(lambda: (gang.box(0) / "stop.json").stat().st_size > 0)
    gang.gate.touch()  # rank 1 ends, too
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert (gang.recorded.say, gang.recorded.ended.code) == ("ended", 0)


@pytest.mark.slow
def test_a_gang_without_a_keeper_releases_its_slot(gang: Gang) -> None:
    gang.start(0)
    assert gang.agents[0].wait(60) == 86


@pytest.mark.slow
def test_a_rank_leaves_a_machine_that_cannot_write_its_trial(gang: Gang) -> None:
    """A limit of the size of its files stands for a full disk."""
    for proc in (0, 1):
        gang.start(proc)
    gang.keep(lambda: gang.trains(2, 1) and gang.has_begun(0))
    resource.prlimit(gang.agents[0].pid, resource.RLIMIT_FSIZE, (4096, 4096))
    gang.start(2)
    gang.wait_long()
    gang.keep(lambda: gang.agents[0].poll() is not None)
    assert gang.agents[0].returncode == 87
    assert "trialfleet: [Errno 27] File too large" in gang.log(0)
    gang.gate.touch()
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert gang.recorded.job == "5.1", "the others train without it"
    assert gang.recorded.ended.code == 0


@pytest.mark.slow
def test_checkpoints_are_sent_by_s3_if_the_study_asks_for_it(
    access_point: ChirpServer, tmp_path: Path, s3: S3Client
) -> None:
    store = GangStore()
    with running(Gang(access_point, tmp_path, store)) as gang:
        write_json(gang.place.gang_store, {"prefix": "s3://ours/some/run"})
        for proc in (0, 1):
            gang.start(proc)
        gang.keep(
            lambda: (
                gang.trains(2, 1) and any(parse_pointer(p.read_bytes()) for p in gang.checkpoints())
            )
        )
        gang.start(2)
        gang.wait_long()
        gang.keep(lambda: gang.trains(3, 2))
        assert gang.roster.start is not None
        gang.keep(lambda: gang.has_begun(2))
        assert int(gang.words(2)[0].rpartition(" ")[2]) > 0, "it began with a checkpoint"
        there = [one["Key"] for one in s3.list_objects_v2(Bucket="ours")["Contents"]]
        assert f"some/run/{gang.roster.start}" in there
        gang.gate.touch()
        gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
        assert gang.recorded.ended.code == 0
        assert json.loads(gang.place.result.read_text())["status"] == "complete"
    gang.keep(lambda: not gang.checkpoints())
    store.close()
    assert "Contents" not in s3.list_objects_v2(Bucket="ours"), "nothing is left"


@pytest.mark.slow
def test_a_checkpoint_that_s3_refuses_is_sent_to_the_access_point(gang: Gang) -> None:
    put = {Package(CHECKPOINT, 1, n).name: "http://127.0.0.1:9/no" for n in range(1, 100)}
    write_json(gang.place.gang / LINKS, {"put": put})
    for proc in (0, 1):
        gang.start(proc)
    gang.keep(lambda: bool(gang.checkpoints()))
    assert not any(parse_pointer(p.read_bytes()) for p in gang.checkpoints())
    assert "000001.tar is sent to the access point instead of S3, after this error" in gang.log(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "over"), [({"memory_mb": 1.0}, "memory"), ({"seconds": 1.0}, "time")]
)
def test_a_rank_over_its_limits_ends_the_trial(
    gang: Gang, limit: dict[str, Any], over: str
) -> None:
    gang.order(**limit)
    for proc in (0, 1):
        gang.start(proc)
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert (gang.recorded.ended.over, gang.recorded.ended.code) == (over, -9)
    assert gang.place.out.read_text().startswith("rank ")


FAILS = """\
import os, sys
from pathlib import Path
print(f"rank {os.environ['RANK']} has a fault", file=sys.stderr)
sys.exit(7 if os.environ["RANK"] == "1" else __import__("time").sleep(60))
"""


@pytest.mark.slow
def test_a_repeatedly_failing_rank_ends_the_trial_with_its_error(gang: Gang) -> None:
    for proc in (0, 1):
        gang.start(proc, FAILS)
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert gang.roster.generation == 3
    assert gang.recorded.ended.code == 7
    assert gang.place.err.read_text() == "rank 1 has a fault\n"
    assert [agent.returncode for agent in gang.agents.values()] == [7, 7]


SPAWNS = """\
import os, subprocess, sys, time
from pathlib import Path
import trial
t = trial.start()
if t.rank == 1:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(t.params["gate"] + ".pid").write_text(str(child.pid))
t.complete(loss=1.0)
"""


@pytest.mark.slow
def test_no_process_of_a_trial_outlives_it(gang: Gang) -> None:
    for proc in (0, 1):
        gang.start(proc, SPAWNS)
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert gang.recorded.ended.code == 0
    child = int(Path(f"{gang.gate}.pid").read_text())
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_gang_trains_one_trial_after_another(gang: Gang, is_killed: bool) -> None:
    first, second = "A.l1.t01", "A.l1.t02"
    gang.is_killed = is_killed
    gang.order(do="ask", last=False)
    gang.start(0)
    gang.keep(lambda: gang.roster.short and gang.roster.generation == 1)
    assert read_last_message(gang.place) is None, "it has no trial before it has its slots"
    gang.start(1)
    asked = gang.answers("train", name=first)
    assert (asked.say, asked.turn.number, asked.trial) == ("ask", 1, "")
    gang.keep(lambda: gang.trains(2, 1) and bool(gang.checkpoints()))
    gang.gate.with_name(first).touch()
    recorded = gang.answers("train", name=second)
    assert (recorded.say, recorded.trial, recorded.ended.code, recorded.wants) == (
        "ended",
        first,
        0,
        True,
    )
    assert (gang.place.words / f"{first}.result.tar").stat().st_size > 0
    gang.keep(lambda: gang.trains(2, 2) and len(gang.words(0, second)) == 1)
    assert gang.roster.start is None
    assert gang.words(0, second) == ["rank 0 of 2, generation 2, step 0"]
    gang.gate.with_name(second).touch()
    recorded = gang.answers("leave", trial=None, code=3, why="that was all")
    assert (recorded.trial, recorded.ended.code) == (second, 0)
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert [agent.returncode for agent in gang.agents.values()] == [3, 3]
    assert gang.checkpoints() == []


@pytest.mark.slow
def test_a_trials_end_counts_although_its_keeper_was_killed_before_the_answer(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    for proc in (0, 1):
        gang.start(proc)
    gang.keep(lambda: gang.trains(2, 1))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    gang.gate.touch()
    with monkeypatch.context() as context:
        context.setattr("trialfleet.workflows.control.gang.keeper._write", killed)
        with pytest.raises(KeyboardInterrupt):
            gang.keep(lambda: False)
    assert gang.roster.code is None
    assert gang.recorded.ended.code == 0
    gang.agents[0].kill()  # its rank 0 with it: nothing says any more that the trial is over
    gang.keep(lambda: gang.agents[1].poll() is not None)
    assert gang.agents[1].returncode == 0
    assert gang.recorded.turn.number == 1, "it was asked once"


ASKS = """\
import os, sys
sys.exit(85 if os.environ["RANK"] == "1" else __import__("time").sleep(60))
"""


@pytest.mark.slow
def test_a_gang_fails_if_a_rank_asks_for_restarts_and_rank_0_saves_nothing(gang: Gang) -> None:
    for proc in (0, 1):
        gang.start(proc, ASKS)
    gang.keep(lambda: gang.roster.generation > 6 or gang.agents[1].poll() is not None)
    assert gang.roster.generation == 4, "the fourth forms, but never runs"
    assert gang.recorded.ended.code == 1
    assert gang.place.err.read_text() == (
        "rank 1 exited with 85, but rank 0 saved no new checkpoint\n"
    )


@pytest.mark.slow
def test_a_gang_that_exits_with_85_without_a_checkpoint_has_failed(gang: Gang) -> None:
    """It would begin at the same point again and again."""
    for proc in (0, 1):
        gang.start(proc, "raise SystemExit(85)")
    gang.keep(lambda: all(agent.poll() is not None for agent in gang.agents.values()))
    assert gang.recorded.ended.code == 1
    assert "saved no new checkpoint" in (gang.place.root / "err").read_text()
