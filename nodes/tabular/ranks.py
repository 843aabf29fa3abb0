"""Several processes for one trial, its ranks: for the GPUs of one machine, or for those of a gang.

On one machine they are under torchrun's engine. The process that HTCondor started launches them by
torch.distributed.launcher (what torchrun itself calls), hands SIGTERM on, and leaves with the
exit code that they agreed on; torchrun would make a 1 of HTCondor's 85. Every rank reads the trial
and the table, and trains its part of each batch. Rank 0 alone writes: progress, checkpoints, model,
result; any of them may reject the trial.

Nothing listens outside of this machine: ranks meet by a file, NCCL and gloo talk by loopback.

A gang's ranks are started by its agents (`nodes/gang`), on as many machines as there are, and meet
by TCP. Who is lost, joins or is called back ends all; others go on from rank 0's checkpoint.
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

MEETING = "TRIALFLEET_RANKS"  # in a rank's environment: the folder by which the ranks meet
CODE = "code"  # in that folder: the exit code for HTCondor
FIRST = "first"  # there: number and exit code of the rank that was the first to fail
PATIENCE = timedelta(minutes=10)  # for a rank that reads its table, or waits for rank 0's judgement
STEPS = 1024  # between two votes at most
_ENDS = (signal.SIGTERM, signal.SIGABRT)  # the launcher's; a rank's own, when it misses another
TOGETHER = (0, trial.EXIT_CHECKPOINTED)  # exit codes with which all ranks leave at once


def inside() -> bool:
    """Return whether this process is a rank that `launch` started."""
    return MEETING in os.environ and "RANK" in os.environ


def in_gang() -> bool:
    """Return whether this process is a rank of a gang, perhaps its only one."""
    return "TRIALFLEET_GENERATION" in os.environ and "RANK" in os.environ


class Ranks:
    """One rank's view of all of them. Without others, everything here is free.

    Attributes:
        rank: this one's number, from 0.
        count: how many there are.
        local_rank: its number on its machine, and its GPU's among those that the trial sees there.
        in_gang: they may be on several machines, and their number changes.
        wire: the type in which `sums` sends float32.
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
        """Meet the other ranks, if this process is one."""
        given = os.environ
        if not inside() and not in_gang():
            return Ranks()
        team = Ranks(
            int(given["RANK"]),
            int(given["WORLD_SIZE"]),
            local_rank=int(given.get("LOCAL_RANK", given["RANK"])),
            in_gang=not inside(),
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
        """Tell whether this is the rank that writes."""
        return self.rank == 0

    def part(self, rows: int) -> tuple[int, int]:
        """Return begin and end of this rank's part of a batch of so many rows."""
        return self.rank * rows // self.count, (self.rank + 1) * rows // self.count

    def agree(self, *, wish: bool) -> bool:
        """Tell whether a rank wishes to stop: the same answer to all at the same step.

        With several ranks they vote every few steps, all after the same number of them: a vote
        takes longer than a small step. It travels while the GPUs work, nobody waits for it, and
        it is counted when the next one is cast. To be called once a step.
        """
        if self.count == 1:
            return wish
        if not self._pace.due():
            return False
        agreed, steps = False, 1
        if self._vote:
            work, votes = self._vote
            work.wait()
            agreed, steps = bool(votes[0]), -int(votes[1])
        # The most of a negative is the least: as many steps as the slowest rank proposes.
        votes = torch.tensor([int(wish), -self._pace.proposal()])
        work = distributed.all_reduce(votes, distributed.ReduceOp.MAX, async_op=True)
        self._vote = (work, votes)
        self._pace.begin(steps)
        return agreed

    def sums(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sums of what all ranks have, the same bits to each.

        All tensors of a type travel as one; float32, unless a single number, as `wire` says. On
        GPUs nothing waits for the device, so that it can be captured in a CUDA graph once the ranks
        have been connected by a first call.
        """
        if self.count == 1:
            return [*tensors]
        sums: dict[int, torch.Tensor] = {}
        types = [self._sent_as(tensor) for tensor in tensors]
        for dtype in dict.fromkeys(types):
            same = [i for i, sent in enumerate(types) if sent == dtype]
            joined = torch.cat([tensors[i].reshape(-1).to(dtype) for i in same])
            distributed.all_reduce(joined)
            parts = torch.split(joined, [tensors[i].numel() for i in same])
            sums |= {i: part.view_as(tensors[i]) for i, part in zip(same, parts, strict=True)}
        return [sums[i].to(tensor.dtype) for i, tensor in enumerate(tensors)]

    def _sent_as(self, tensor: torch.Tensor) -> torch.dtype:
        return self.wire if tensor.dtype == torch.float32 and tensor.ndim else tensor.dtype

    def of_first(self, value: float) -> float:
        """Return what rank 0 has, so that all decide alike."""
        if self.count == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(values, 0)
        return values.item()

    def least(self, value: float) -> float:
        """Return the least of what the ranks have."""
        if self.count == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(values, distributed.ReduceOp.MIN)
        return values.item()

    def meet(self) -> None:
        """Wait until all ranks are here."""
        if self.count > 1:
            distributed.all_reduce(torch.zeros(1))


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
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            why = blame(codes, count, Path(folder))
        finally:  # the ranks are gone, so there is nothing left to save
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code_file = Path(folder) / CODE
        sys.exit(int(code_file.read_text()) if code_file.exists() else why)


def blame(codes: dict[int, int], count: int, folder: Path) -> str:
    """Return a text with the rank that failed, by exit codes and the ranks' records.

    It is the first one, because the others fail for lack of it.
    """
    first_failure = folder / FIRST
    # Killed from outside, by want of memory for example: such a rank could not say so.
    killed = [rank for rank, code in codes.items() if code < 0 and -code not in _ENDS]
    if killed:
        rank, code = killed[0], codes[killed[0]]
    elif first_failure.exists():
        rank, code = map(int, first_failure.read_text().split())
    else:
        rank, code = next(iter(codes.items()))
    return f"rank {rank} of {count} failed with exit code {code}"


def run(main: Callable[[], None]) -> None:
    """Call a trial's main function, which leaves by SystemExit; tell the launcher how a rank left.

    To the launcher only 0 is success. A rank that leaves alone, for want of memory, does so with
    another code, and the launcher ends the others, who wait for it.
    """
    try:
        main()
    except SystemExit as left:
        if not inside():
            if left.code in TOGETHER and distributed.is_initialized():
                distributed.destroy_process_group()
            raise
        together = left.code in TOGETHER
        if left.code == trial.EXIT_REJECTED or (together and os.environ["RANK"] == "0"):
            # for HTCondor
            _note(CODE, str(left.code)).replace(Path(os.environ[MEETING], CODE))
        if not together:
            _report_failure(left.code if isinstance(left.code, int) else 1)
            raise
        distributed.destroy_process_group()
    except BaseException:
        if inside():
            _report_failure(1)
        raise


def _report_failure(code: int) -> None:
    """Record that this rank failed, unless another one did before."""
    with contextlib.suppress(FileExistsError):
        os.link(_note(FIRST, f"{os.environ['RANK']} {code}"), Path(os.environ[MEETING], FIRST))


def _note(name: str, text: str) -> Path:
    """Write a file of this rank's own, to be put whole in place of that name."""
    own = Path(os.environ[MEETING], f"{name}-{os.environ['RANK']}")
    own.write_text(text)
    return own
