"""Several GPUs for one trial: a process each, its rank, under torchrun's engine.

The process that HTCondor started launches the ranks by torch.distributed.launcher (what torchrun
itself calls), hands SIGTERM on, and leaves with the exit code that they agreed on; torchrun would
make a 1 of HTCondor's 85. Every rank reads the trial and the table, and trains its part of each
batch. Rank 0 alone writes: progress, checkpoints, model, result; any of them may reject the trial.

Nothing listens outside of this machine: ranks meet by a file, NCCL and gloo talk by loopback.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import distributed

if __package__:
    from trialfleet.nodes import trial
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    import trial

MEETING = "TRIALFLEET_RANKS"  # in a rank's environment: the folder by which the ranks meet
CODE = "code"  # in that folder: the exit code for HTCondor
PATIENCE = timedelta(minutes=10)  # for a rank that reads its table, or waits for rank 0's judgement
TOGETHER = (0, trial.EXIT_CHECKPOINTED)  # exit codes with which all ranks leave at once


def inside() -> bool:
    """Tell whether this process is a rank."""
    return MEETING in os.environ and "RANK" in os.environ


class Ranks:
    """One rank's view of all of them. Without others, everything here is free.

    Attributes:
        rank: this one's number, from 0; also its GPU's among those that the trial sees.
        count: how many there are.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self._vote: tuple[distributed.Work, torch.Tensor] | None = None

    @staticmethod
    def join() -> Ranks:
        """Meet the other ranks, if this process is one."""
        if not inside():
            return Ranks()
        team = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            init_method=f"file://{os.environ[MEETING]}/ranks",
            rank=team.rank,
            world_size=team.count,
            timeout=PATIENCE,
        )
        return team

    @property
    def first(self) -> bool:
        """Tell whether this is the rank that writes."""
        return self.rank == 0

    def part(self, rows: int) -> tuple[int, int]:
        """Return begin and end of this rank's part of a batch of so many rows."""
        return self.rank * rows // self.count, (self.rank + 1) * rows // self.count

    def agree(self, *, wish: bool) -> bool:
        """Tell whether a rank wishes to stop: the same answer to all at the same step.

        With several ranks, the answer is to the wishes of the step before: votes travel while the
        GPUs work, and nobody waits for them. To be called once a step.
        """
        if self.count == 1:
            return wish
        agreed = False
        if self._vote:
            work, votes = self._vote
            work.wait()
            agreed = bool(votes.item())
        votes = torch.tensor([int(wish)])
        work = distributed.all_reduce(votes, distributed.ReduceOp.MAX, async_op=True)
        self._vote = (work, votes)
        return agreed

    def total(self, value: float) -> float:
        """Return the sum of what every rank has."""
        if self.count == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(values)
        return values.item()

    def of_first(self, value: float) -> float:
        """Return what rank 0 has, so that all decide alike."""
        if self.count == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(values, 0)
        return values.item()

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self.total(0.0)


# The process that launches them


def launch(count: int) -> NoReturn:
    """Run this program in so many processes, ranks; leave with the exit code that they agree on."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="trialfleet-ranks-") as folder:
        os.environ |= {
            MEETING: folder,
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // count)),
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # it would listen to everybody
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
        except SignalException as error:  # the ranks had it too, and half a minute to save
            why = 128 + error.sigval
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            why = f"rank {rank} of {count} failed with exit code {failure.exitcode}"
        finally:  # the ranks are gone, so there is nothing left to save
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        told = Path(folder) / CODE
        sys.exit(int(told.read_text()) if told.exists() else why)


def run(main: Callable[[], None]) -> None:
    """Call a trial's main function, which leaves by SystemExit; tell the launcher how a rank left.

    To the launcher only 0 is success. A rank that leaves alone, for want of memory, does so with
    another code, and the launcher ends the others, who wait for it.
    """
    try:
        main()
    except SystemExit as left:
        if not inside():
            raise
        together = left.code in TOGETHER
        if left.code == trial.EXIT_REJECTED or (together and os.environ["RANK"] == "0"):
            _tell(str(left.code))
        if not together:
            raise
        distributed.destroy_process_group()


def _tell(code: str) -> None:
    told = Path(os.environ[MEETING]) / CODE
    beside = told.with_name(f"{CODE}-{os.environ['RANK']}")
    beside.write_text(code)
    beside.replace(told)
