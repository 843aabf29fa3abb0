"""The ranks of a trial: processes that train together, on one machine or on a gang's machines.

On one machine, the process that HTCondor started launches the ranks with
torch.distributed.launcher, and exits with one exit code for all of them. torchrun is not used,
because it would turn the exit code 85 (a checkpoint is saved) into 1. The ranks find each other by
a file, and use loopback, so that other machines can't connect to them.

In a gang, the jobs' agents start the ranks, which find each other by TCP. If a job joins, leaves or
is lost, all ranks end, and new ranks continue from rank 0's checkpoint.

Only rank 0 writes progress, checkpoints, model and result. Any rank may reject the trial.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
from torch import distributed

from trialfleet.nodes import trial
from trialfleet.nodes.tabular.pace import Pace

MEETING = "TRIALFLEET_RANKS"  # in a rank's environment: the folder for the rendezvous
CODE = "code"  # in that folder: the exit code for HTCondor
FIRST = "first"  # in that folder: number and exit code of the rank that failed first
# Time for which a rank waits for others, for example while they read their tables.
PATIENCE = timedelta(minutes=10)
STEPS = 1024  # maximum steps between votes
_ENDS = (signal.SIGTERM, signal.SIGABRT)  # by the launcher; by a rank that lost another rank
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

        If the process trains alone, there is no connection, and `count` is 1.
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
        """Return the sum over all ranks of each tensor in `tensors`.

        All ranks get the same bits. A CUDA graph can capture any call except the first, which
        connects the ranks.
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

    The exit code is 0 or 85 from rank 0, or the code of a rank that rejected the trial. Otherwise
    it is 128 + n after signal n, and 1 after a failure.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="trialfleet-ranks-") as folder:
        os.environ |= {
            MEETING: folder,
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // count)),
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # it would listen on all interfaces
        }
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id="trial",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{folder}/launch",
            rdzv_configs={"store_type": "file"},
            max_restarts=0,
            local_addr="127.0.0.1",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        why: int | str = 1
        try:
            elastic_launch(config, sys.executable)(*sys.argv)
        except SignalException as error:  # the ranks got it, too, and had half a minute to save
            why = 128 + error.sigval
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            why = blame(codes, count, Path(folder))
        finally:  # the ranks are gone, so there is nothing left to save
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code_file = Path(folder) / CODE
        sys.exit(int(code_file.read_text()) if code_file.exists() else why)


def blame(codes: dict[int, int], count: int, folder: Path) -> str:
    """Return an error text that names the rank that failed first, and its exit code.

    `codes` has the exit codes of the ranks that failed, and of those that the launcher then ended.
    `count` is the number of all ranks. The ranks have recorded the first failure in `folder`.
    """
    first_failure = folder / FIRST
    # A rank that was killed from outside, for example for lack of memory, could not record this.
    killed = [rank for rank, code in codes.items() if code < 0 and -code not in _ENDS]
    if killed:
        rank, code = killed[0], codes[killed[0]]
    elif first_failure.exists():
        rank, code = map(int, first_failure.read_text().split())
    else:
        rank, code = next(iter(codes.items()))
    return f"rank {rank} of {count} failed with exit code {code}"


def run(main: Callable[[], None]) -> None:
    """Call a trial's main function, and hand its exit code to `launch`.

    When a rank exits with a code other than 0, torch's launcher ends the other ranks. After 85 (a
    checkpoint is saved) it must let them exit by themselves. So a rank that `launch` started exits
    with 0 instead of 85. Rank 0 writes the 85 to a file for `launch`.
    """
    try:
        main()
    except SystemExit as left:
        if not is_rank():
            if left.code in TOGETHER and distributed.is_initialized():
                distributed.destroy_process_group()
            raise
        together = left.code in TOGETHER
        if left.code == trial.EXIT_REJECTED or (together and os.environ["RANK"] == "0"):
            # `launch` exits with this code.
            _write_own_file(CODE, str(left.code)).replace(Path(os.environ[MEETING], CODE))
        if not together:
            _report_failure(left.code if isinstance(left.code, int) else 1)
            raise
        distributed.destroy_process_group()
    except BaseException:
        if is_rank():
            _report_failure(1)
        raise


def _report_failure(code: int) -> None:
    """Record that this rank failed, unless another rank failed before."""
    with contextlib.suppress(FileExistsError):
        os.link(
            _write_own_file(FIRST, f"{os.environ['RANK']} {code}"), Path(os.environ[MEETING], FIRST)
        )


def _write_own_file(name: str, text: str) -> Path:
    own = Path(os.environ[MEETING], f"{name}-{os.environ['RANK']}")
    own.write_text(text)
    return own
