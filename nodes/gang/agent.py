"""The agent of a gang's job, which starts workers (training processes) and sends checkpoints.

A gang is several jobs that train one model. The agent is the first process of each job.

The keeper is a process on the access point. It decides which jobs take part, and writes their list,
the roster, to `roster.json`. When the roster changes, a new generation begins: each agent on the
roster starts new workers. Each agent writes its own state to another file on the access point. An
agent runs until all trials are trained, or until its job must leave its slot. Its exit codes:

    0, 1, …    nothing is left to train; the keeper has written this code to the roster
    85         the job's machine is being vacated: HTCondor starts the job again elsewhere
    86         too few of the gang's jobs have a slot. The job waits in the queue, and another gang
               may have its slot
    87         this machine has a fault, such as a full disk. The job waits for another machine
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trialfleet.nodes import CHECKPOINT, PROGRESS
from trialfleet.nodes import RESULT as RESULT_FILE
from trialfleet.nodes.gang import member, network, peers, workers
from trialfleet.nodes.gang.carrier import REMOTE, Carrier
from trialfleet.nodes.gang.member import Member
from trialfleet.nodes.gang.packages import RESULT, Package
from trialfleet.nodes.gang.part import Part
from trialfleet.nodes.gang.roster import Roster, SlotRelease
from trialfleet.nodes.job import agent, checkpoints, job_ad
from trialfleet.nodes.job.checkpoints import EXIT_CHECKPOINTED
from trialfleet.nodes.job.chirp import TransferError
from trialfleet.nodes.job.events import Events
from trialfleet.nodes.job.folder import ERR, OUT, Folders
from trialfleet.nodes.job.messages import ORDER, Order
from trialfleet.nodes.job.pack_and_unpack import (
    DamagedPackageError,
    TooLargeError,
    UnsendableError,
)
from trialfleet.nodes.job.process_tree import ProcessTree

if TYPE_CHECKING:
    from trialfleet.nodes.job.chirp_access import Channel

EXIT_NO_GANG = 86
TICK = 0.2  # seconds between polls of the roster
HEARTBEAT_SECONDS = 3.0  # seconds between heartbeats
LEAVE_SECONDS = 25.0  # after SIGTERM: less than a machine gives a job
ANSWER_SECONDS = 4.0  # time for the keeper to react to a rank that leaves
DELIVER_SECONDS = 2.0  # between attempts to send the workers' files
BEGIN_SECONDS = 10.0  # time limit for attempts to fetch the order and a checkpoint
WORKERS = "TRIALFLEET_WORKERS"  # in the environment: number of workers of each job
_UNSAVED = "rank {} exited with 85, but rank 0 saved no new checkpoint\n"
# The phase after the workers' end, by their exit code, and the package that is then sent.
_ENDS = {0: (member.FINISHED, RESULT), EXIT_CHECKPOINTED: (member.SAVED, CHECKPOINT)}
AGENT = "TRIALFLEET_AGENT"  # in a worker's environment: the socket for `trial.py`


class Agent:
    """The agent of one job of a gang. It starts `per_job` workers with the trainer's command."""

    def __init__(
        self, command: list[str], cluster: int, proc: int, per_job: int, channel: Channel
    ) -> None:
        self._cluster, self._proc, self._per_job = cluster, proc, per_job
        self._chirp, self._events, self._processes = channel.chirp(), Events(), ProcessTree()
        sandbox = Path.cwd()
        self._folders = Folders(sandbox)
        # JobCurrentStartDate does not change when a shadow reconnects to the job.
        began, starts, disk = job_ad.numbers(
            "JobCurrentStartDate", "NumShadowStarts", "RequestDisk"
        )
        self._release = SlotRelease(starts)
        most_bytes = float(disk * 1024 or "inf")  # maximum size of a package
        self._carrier = Carrier(self._chirp, sandbox, proc, most_bytes, self._report_state)
        host = network.own_address()
        self._peers = peers.Peers(host)
        self._me = Member(
            token=secrets.token_hex(4),
            began=began,
            host=host,
            port=0,
            phase=member.WAITING,
            generation=0,
            door=self._peers.door,
        )
        self._said: Member | None = None
        self._said_at, self._beat = 0.0, 0
        self._part: Part | None = None
        self._rank: int | None = None  # this machine's rank in its present generation
        self._saves = 0  # number of attempts to send checkpoints of that generation
        self._to_deliver: str | None = None  # kind of package that is still to be delivered
        self._deliver_at = 0.0
        self._leave_at: float | None = None
        self._begin_by: float | None = None
        self._sent_state: object = None  # of the checkpoint that was sent last
        self._save_socket = network.SaveSocket(sandbox)
        self._server = workers.Server(command, self._save_socket.folder)

    def run(self) -> int:
        """Run until the gang is done or this job must leave its slot, and return the exit code."""
        while True:
            roster = self._read_roster()
            code = self._turn(roster)
            if code is not None:
                return code
            self._report_state()
            self._serve()

    # One turn

    def _turn(self, roster: Roster | None) -> int | None:
        self._look_at_workers()
        self._deliver()
        if roster and roster.state == "done":
            return roster.code if roster.code in range(EXIT_CHECKPOINTED) else 1
        if self._events.is_wanted_back:
            return self._vacate(roster)
        if roster is None:
            pass  # workers continue without a roster
        elif roster.state == "form":
            self._join_gang(roster)
        else:
            self._take_part(roster)
        is_due = self._release.is_due(roster, is_busy=self._is_busy())
        return EXIT_NO_GANG if is_due else None

    def _join_gang(self, roster: Roster) -> None:
        if roster.generation <= self._me.generation:
            return
        self._end_workers(kill=roster.kill)
        is_over = self._part is not None and self._part.order.name != roster.trial
        result_waits = self._rank == 0 and self._me.phase == member.FINISHED
        if is_over:
            self._to_deliver = self._part = None
        if is_over or not (self._is_busy() or result_waits):
            self._rank = None
            self._set_phase(member.READY, roster.generation, port=network.free_port(self._me.host))

    def _take_part(self, roster: Roster) -> None:
        mine = [rank for rank, each in enumerate(roster.members) if each[1] == self._me.token]
        if roster.generation == self._me.generation and mine:
            if self._me.phase == member.READY:
                self._begin(roster, mine[0])
        elif roster.generation >= self._me.generation:  # the gang continues without this job
            self._kill()
            self._rank = None
            if not self._is_busy():
                self._set_phase(member.WAITING, roster.generation - 1)

    def _begin(self, roster: Roster, rank: int) -> None:
        try:
            part = self._new_part(roster, rank)
        except (TransferError, DamagedPackageError) as error:
            self._could_not_begin(roster, error)
            return
        if part is None:  # the roster does not fit the order: a new roster will come
            return
        self._part, self._rank, self._saves, self._begin_by = part, rank, 0, None
        self._sent_state = part.checkpoint_at_start
        host, port = roster.members[0][2:4]
        shared = network.variables(self._me.host) | {
            "WORLD_SIZE": str(len(roster.members) * self._per_job),
            "LOCAL_WORLD_SIZE": str(self._per_job),
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": str(len(roster.members)),
            "MASTER_ADDR": str(host),
            "MASTER_PORT": str(port),
            "TRIALFLEET_GENERATION": str(roster.generation),
            AGENT: self._save_socket.address(self._server.pid),
        }
        for local_rank in range(self._per_job):
            number = rank * self._per_job + local_rank
            own = {"RANK": str(number), "LOCAL_RANK": str(local_rank)}
            part.start(shared | own)
        self._peers.watch(peers.Peer(each[1], each[2], each[4]) for each in roster.members[:rank])
        self._set_phase(member.RUNNING, roster.generation)
        if rank == 0:
            part.reports.tell_trial()

    def _new_part(self, roster: Roster, rank: int) -> Part | None:
        order = Order.from_json(self._chirp.read(ORDER))
        if order is None or order.trial is None or order.name != roster.trial:
            return None
        folder = self._folders.make(order)
        if roster.start:
            self._carrier.fetch(roster.start, folder)
        if rank:  # the checkpoint contains rank 0's output, which only rank 0 continues
            for name in (OUT, ERR):
                (folder / name).write_bytes(b"")
        part = self._part or Part(order, self._processes, self._server)
        part.prepare(folder, self._chirp)
        return part

    def _could_not_begin(self, roster: Roster, error: OSError) -> None:
        print(f"gang: {roster.start or 'the order'} can't be fetched: {error}", file=sys.stderr)
        self._begin_by = self._begin_by or time.monotonic() + BEGIN_SECONDS
        if time.monotonic() > self._begin_by:
            self._begin_by = None
            self._set_phase(member.FAILED, roster.generation, code=1, ended=time.time())

    def _vacate(self, roster: Roster | None) -> int | None:
        """End this job's part in the gang, because its machine is being vacated.

        The agent calls this method in each turn. Return None while the gang still needs this job's
        workers or files, but at most for LEAVE_SECONDS. Then return the exit code.
        """
        self._leave_at = by = self._leave_at or time.monotonic() + LEAVE_SECONDS
        if self._me.phase not in {member.FINISHED, member.LEAVING}:
            self._set_phase(member.LEAVING, self._me.generation)
        if roster and roster.state == "form" and roster.generation > self._me.generation:
            self._end_workers(kill=roster.kill)
        elif time.monotonic() >= by - LEAVE_SECONDS + ANSWER_SECONDS:  # the keeper is gone
            self._end_workers(kill=self._rank != 0)
        is_needed = self._is_busy() or (self._rank == 0 and self._me.phase == member.FINISHED)
        return EXIT_CHECKPOINTED if time.monotonic() >= by or not is_needed else None

    # Workers

    def _is_busy(self) -> bool:
        return self._to_deliver is not None or bool(self._part and self._part.is_training)

    def _end_workers(self, *, kill: bool) -> None:
        if kill:
            self._kill()
        elif self._rank == 0 and self._part:
            self._part.ask_to_save()

    def _kill(self) -> None:
        if self._part:
            self._part.kill()

    def _look_at_workers(self) -> None:
        part = self._part
        if part is None or not part.has_ended():
            return
        is_leaving = self._leave_at is not None
        is_restart = part.code == EXIT_CHECKPOINTED and not (is_leaving or part.is_asked_to_save)
        is_of_first = is_restart and self._rank == 0
        if is_of_first and not checkpoints.has_saved(part.folder, part.checkpoint_at_start):
            part.code = 1
        phase, left = _ENDS.get(part.code, (member.FAILED, RESULT))
        if is_leaving and phase == member.FAILED:  # the gang continues without this job
            return
        if is_restart and not is_of_first:  # the trial fails with this result if rank 0 never saves
            checkpoints.note(part.folder, _UNSAVED.format(self._rank))
            part.code, left = 1, RESULT
        is_result = left == RESULT and phase != member.FINISHED
        self._to_deliver = left if self._rank == 0 or is_result else None
        self._deliver_at = 0.0
        self._deliver()
        if not part.unsendable and (phase == member.FINISHED or not is_leaving):
            self._say_end(part, phase)

    def _say_end(self, part: Part, phase: str) -> None:
        if changed := self._folders.find_changed_input():
            words = f"the trial has changed {changed}, so the next trial begins in another job"
            print(f"gang: {words}", flush=True)
        ended = {"code": part.code, "ended": time.time(), "over": part.over}
        self._set_phase(phase, self._me.generation, changed=int(bool(changed)), **ended)

    # The access point

    def _read_roster(self) -> Roster | None:
        try:
            return Roster.from_json(self._chirp.read(f"{REMOTE}/roster.json"), self._cluster)
        except OSError:
            return None

    def _set_phase(self, phase: str, generation: int, **more: Any) -> None:
        now = replace(self._me, phase=phase, generation=generation, code=0, ended=0.0, over="")
        self._me = replace(now, **more)
        if phase in {member.READY, member.WAITING}:
            self._peers.watch(())

    def _report_state(self) -> None:
        """Write this agent's state to the access point if it has changed or a heartbeat is due.

        Rank 0 also sends the trial's reports, and fetches an order to stop the trial. `Carrier`
        calls this method during transfers.
        """
        self._peers.update()
        self._me = replace(
            self._me, busy=int(self._is_busy()), lost=",".join(self._peers.unreachable_peers)
        )
        now = time.monotonic()
        if self._me == self._said and now - self._said_at < HEARTBEAT_SECONDS:
            return
        self._beat += 1
        said = replace(self._me, beat=self._beat)
        if took := self._part:
            cpu, memory = round(took.cpu_seconds, 1), round(took.memory_mb, 1)
            said = replace(said, cpu=cpu, memory=memory)
        words = said.to_text().encode()
        try:
            self._chirp.write(f"{REMOTE}/{member.state_file_name(self._proc)}", words)
        except OSError:
            return
        self._said, self._said_at = self._me, now
        if self._rank == 0 and self._part:
            with suppress(OSError):
                self._part.reports.send()
                self._part.reports.send_printed()
                if self._part.order.grace_seconds is not None:  # it may be stopped early
                    self._part.reports.take_order()

    def _deliver(self) -> None:
        now = time.monotonic()
        if self._to_deliver is None or self._part is None or now < self._deliver_at:
            return
        self._deliver_at = now + DELIVER_SECONDS
        if self._send(self._to_deliver, self._part):
            self._to_deliver = None

    def _send(self, kind: str, part: Part) -> bool:
        try:
            return self._send_checkpoint(part) if kind == CHECKPOINT else self._send_result(part)
        except TooLargeError as error:
            self._give_up(part, f"the trial has written {error}", error.limit)
        except UnsendableError as error:
            if part.is_training:  # its workers may complete the file
                print(f"gang: {error}", file=sys.stderr)
            else:
                self._give_up(part, str(error))
        return False

    def _give_up(self, part: Part, why: str, over: str = "") -> None:
        print(f"gang: {why}", file=sys.stderr)
        part.kill()
        part.unsendable, part.over, part.code, self._to_deliver = why, over, 1, RESULT
        self._say_end(part, member.FAILED)

    def _send_result(self, part: Part) -> bool:
        names = [RESULT_FILE, PROGRESS, OUT, ERR, *(part.order.left if part.code == 0 else ())]
        package = Package(RESULT, self._me.generation, self._proc)
        if part.unsendable:
            written = {ERR: f"{part.unsendable}\n".encode()}
            return self._carrier.bring(package, (), part.folder, written)
        return self._carrier.bring(package, names, part.folder)

    def _send_checkpoint(self, part: Part) -> bool:
        state = checkpoints.state(part.folder)
        if state == self._sent_state:
            return True
        self._saves += 1  # a new number for each attempt, as a package that failed may have arrived
        package = Package(CHECKPOINT, self._me.generation, self._saves)
        if not self._carrier.bring(package, checkpoints.SAVED, part.folder):
            return False
        self._sent_state = state
        return True

    def _serve(self) -> None:
        """Wait for an event, at most TICK seconds, and send the checkpoints that a worker saves."""
        until = time.monotonic() + TICK
        while (left := until - time.monotonic()) > 0:
            self._events.wait(left, self._save_socket.listener)
            connection = self._save_socket.accept()
            if connection is None:
                return
            with connection, suppress(OSError):
                connection.recv(64)
                is_sent = self._rank != 0 or self._save()
                connection.sendall(b"ok\n" if is_sent else b"failed\n")

    def _save(self) -> bool:
        try:
            return bool(self._part and self._send(CHECKPOINT, self._part))
        except OSError as error:  # the workers go on: their result may need less disk
            print(f"gang: the checkpoint can't be sent: {error}", file=sys.stderr)
            return False


def main(job: str, command: list[str]) -> NoReturn:
    """Run the agent of the job with the id `job`, such as 12.0, and exit with its exit code."""
    cluster, proc = map(int, job.split("."))
    per_job = int(os.environ.get(WORKERS, "1"))

    def live(channel: Channel) -> int:
        return Agent(command, cluster, proc, per_job, channel).run() << 8

    agent.run(live)
