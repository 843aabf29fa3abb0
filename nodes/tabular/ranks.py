"""The ranks of a trial: processes that train together, on one machine or on a gang's machines.

On one machine, the process that HTCondor started launches the ranks, and exits with one exit code
for all of them. torchrun and torch's launcher are not used, because they turn the exit code 85 (a
checkpoint is saved) into 1. The ranks find each other by a file, and use loopback, so that other
machines can't connect to them.

In a gang, the jobs' agents start the ranks, which find each other by TCP. If a job joins, leaves or
is lost, all ranks end, and new ranks continue from rank 0's checkpoint.

Only rank 0 writes progress, checkpoints, model and result. Any rank may reject the trial.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
from torch import distributed

from trialfleet.nodes import trial
from trialfleet.nodes.tabular.pace import Pace

MEETING = "TRIALFLEET_RANKS"  # in a rank's environment: the folder for the rendezvous
CODE = "code"  # in that folder: the exit code of rank 0, once it has come to its end
# Time for which a rank waits for others, for example while they read their tables.
PATIENCE = timedelta(minutes=10)
STEPS = 1024  # maximum steps between votes
TOGETHER = (0, trial.EXIT_CHECKPOINTED)  # exit codes that all ranks reach at the same step


def is_rank() -> bool:
    """Return whether this process is a rank that `launch` started."""
    return MEETING in os.environ and "RANK" in os.environ


def in_gang() -> bool:
    """Return whether this process is a rank of a gang, even if it is the only rank."""
    return "TRIALFLEET_GENERATION" in os.environ and "RANK" in os.environ


class Ranks:
    """One rank's communication with the other ranks of a trial.

    If there is only one rank, the methods return at once.

    Attributes:
        local_rank: the rank's number on its machine, which is also the index of its GPU there.
        in_gang: True if the ranks may be on several machines, and their number can change.
        wire: the type in which `sums` sends tensors of float32.
    """

    def __init__(
        self, rank: int = 0, count: int = 1, *, local_rank: int | None = None, in_gang: bool = False
    ) -> None:
        self.rank, self.count, self.in_gang = rank, count, in_gang
        self.local_rank = rank if local_rank is None else local_rank
        self.wire = torch.float32
        self._pace = Pace(STEPS)
        self._vote: tuple[distributed.Work, torch.Tensor] | None = None

    @staticmethod
    def join() -> Ranks:
        """Connect this process with the other ranks of the trial.

        A process that trains alone connects with nothing, and its `count` is 1.
        """
        given = os.environ
        if not is_rank() and not in_gang():
            return Ranks()
        team = Ranks(
            int(given["RANK"]),
            int(given["WORLD_SIZE"]),
            local_rank=int(given.get("LOCAL_RANK", given["RANK"])),
            in_gang=not is_rank(),
        )
        if team.in_gang and team.count == 1:
            return team
        at = f"tcp://{given['MASTER_ADDR']}:{given['MASTER_PORT']}" if team.in_gang else ""
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            init_method=at or f"file://{given[MEETING]}/ranks",
            rank=team.rank,
            world_size=team.count,
            timeout=PATIENCE,
        )
        return team

    @property
    def first(self) -> bool:
        """True for rank 0, which writes the files."""
        return self.rank == 0

    def part(self, rows: int) -> tuple[int, int]:
        """Return where this rank's part of a batch of `rows` rows begins and ends."""
        return self.rank * rows // self.count, (self.rank + 1) * rows // self.count

    def any_wished(self, *, wish: bool) -> bool:
        """Return whether `wish` was True on any rank a few steps ago.

        `wish` says whether this rank wants something, such as to save a checkpoint. Call this in
        each step. All ranks get the same answer.

        A vote takes longer than a small step, so the ranks only vote every few steps. In other
        steps the answer is False. To avoid waiting, a vote returns the result of the previous vote.
        A single rank gets its own `wish` at once.
        """
        if self.count == 1:
            return wish
        if not self._pace.is_due():
            return False
        agreed, steps = False, 1
        if self._vote:
            work, votes = self._vote
            work.wait()
            agreed, steps = bool(votes[0]), -int(votes[1])
        # The maximum of the negative numbers gives the smallest proposal, that of the slowest rank.
        votes = torch.tensor([int(wish), -self._pace.proposal()])
        work = distributed.all_reduce(votes, distributed.ReduceOp.MAX, async_op=True)
        self._vote = (work, votes)
        self._pace.begin(steps)
        return agreed

    def sums(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sum of each tensor over all ranks, with the same bits on all of them.

        A CUDA graph can capture any call except the first, which connects the ranks.
        """
        if self.count == 1:
            return [*tensors]
        sums: dict[int, torch.Tensor] = {}
        types = [self._wire_dtype(tensor) for tensor in tensors]
        for dtype in dict.fromkeys(types):
            same = [i for i, sent in enumerate(types) if sent == dtype]
            joined = torch.cat([tensors[i].reshape(-1).to(dtype) for i in same])
            distributed.all_reduce(joined)
            parts = torch.split(joined, [tensors[i].numel() for i in same])
            sums |= {i: part.view_as(tensors[i]) for i, part in zip(same, parts, strict=True)}
        return [sums[i].to(tensor.dtype) for i, tensor in enumerate(tensors)]

    def _wire_dtype(self, tensor: torch.Tensor) -> torch.dtype:
        return self.wire if tensor.dtype == torch.float32 and tensor.ndim else tensor.dtype

    def broadcast_first(self, value: float) -> float:
        """Return rank 0's `value`, so that all ranks make the same decision."""
        if self.count == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(values, 0)
        return values.item()

    def least(self, value: float) -> float:
        """Return the smallest `value` of all ranks."""
        if self.count == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(values, distributed.ReduceOp.MIN)
        return values.item()

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        if self.count > 1:
            distributed.all_reduce(torch.zeros(1))


# The launching process


def launch(count: int) -> NoReturn:
    """Run this program in `count` processes, the ranks, and exit when they have ended.

    If a rank fails, kill the others. The exit code is 64 if a rank rejected the trial, else that of
    rank 0 (0 or 85) if rank 0 came to its end, else 1.
    """
    with tempfile.TemporaryDirectory(prefix="trialfleet-ranks-") as folder:
        shared = {
            **os.environ,
            MEETING: folder,
            "WORLD_SIZE": str(count),
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // count)),
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        words = [sys.executable, *sys.argv]
        own = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count))
        ranks = {os.posix_spawn(words[0], words, shared | each): each["RANK"] for each in own}

        def send(number: int, _frame: object = None) -> None:
            for pid in ranks:
                os.kill(pid, number)

        signal.signal(signal.SIGTERM, send)  # the ranks then save
        codes: dict[str, int] = {}
        while ranks:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # its pid stays reserved
            assert ended is not None
            rank = ranks.pop(ended.si_pid)
            codes[rank] = os.waitstatus_to_exitcode(os.waitpid(ended.si_pid, 0)[1])
            if codes[rank] not in TOGETHER:
                send(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left to save, even at the exit
        if trial.EXIT_REJECTED in codes.values():
            sys.exit(trial.EXIT_REJECTED)
        if (done := Path(folder, CODE)).exists():
            sys.exit(int(done.read_text()))
    rank, code = next(each for each in codes.items() if each[1] not in TOGETHER)
    sys.exit(f"rank {rank} of {count} failed with exit code {code}")


def run(main: Callable[[], None]) -> None:
    """Call a trial's main function, and end this process with its exit code.

    Rank 0 of `launch` writes the code 0 or 85 to a file first, because ranks may fail when they
    disconnect. A rank that fails ends at once, and so before the ranks that then miss it.
    """
    try:
        main()
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        if code in TOGETHER:
            if is_rank() and os.environ["RANK"] == "0":
                part = Path(os.environ[MEETING], f".{CODE}")
                part.write_text(str(code))
                part.rename(part.with_name(CODE))
            if distributed.is_initialized():
                distributed.destroy_process_group()
        elif is_rank():
            _fail(error, code)
        raise


def _fail(error: BaseException, code: object) -> NoReturn:
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif not isinstance(code, int):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
