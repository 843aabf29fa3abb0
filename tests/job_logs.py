"""Event logs of jobs, as HTCondor and the access point write them together."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

BEGIN = datetime.fromisoformat("2026-11-22T08:00:00")
PRICED = """\
\tTrialfleetPricePerHour = 3.6
\tTotalCpus = 4
\tTotalMemory = 512
"""
_USAGE = """\
\t\tUsr 0 00:00:09, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
"""
_BYTES = """\
\t0  -  Run Bytes Sent By Job
\t0  -  Run Bytes Received By Job
"""


class JobLog:
    """A job's event log; times are seconds after `BEGIN`.

    Attributes:
        proc: of a gang's jobs, that to which events happen.
    """

    proc = 0

    def __init__(self, path: Path, job: int = 12, *, begin: datetime = BEGIN) -> None:
        self._path, self._job, self._begin = path, job, begin
        path.parent.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def now() -> datetime:
        """Return a time to begin at, for a log to which the access point itself adds."""
        return datetime.now()

    def at(self, second: float) -> float:
        """Return a time in Unix seconds."""
        return (self._begin + timedelta(seconds=second)).timestamp()

    def submitted(self, second: float, procs: int = 1) -> None:
        """Record that a job was submitted, or several of one cluster: with each call others."""
        self._job += 1
        for self.proc in reversed(range(procs)):
            self._write(second, 0, "Job submitted from host: <127.0.0.1:1>")

    def executes(self, second: float, machine: str = "a", *, priced: bool = True) -> None:
        """Record the start of an execution, in a quarter of a machine of 3.60 USD per hour."""
        props = PRICED if priced else ""
        slot = f'\tSlotName: slot1_1@{machine}\n\tCondorScratchDir = "/scratch/{self._job}"\n'
        gpus = '\tAvailableGPUs = { GPUs_GPU_1 }\n\tGPUs_GPU_1 = [ Id = "GPU-1"; ]\n'
        own = f"{gpus}\tCpus = 1\n\tDisk = 1\n\tGPUs = 0\n\tMemory = 128\n"
        self._write(second, 1, f"Job executing on host: <127.0.0.1:1>\n{slot}{props}{own}".rstrip())

    def marks(self, second: float, words: str) -> None:
        """Record a note of the access point on a trial."""
        self._write(second, 8, f"trialfleet: {words}")

    def evicted(self, second: float) -> None:
        """Record an eviction, after which the job is to be started again."""
        ended = "Job was evicted. Code 1022 Subcode 0\n\t(0) CPU times\n"
        self._write(second, 4, f"{ended}{_USAGE}{_BYTES}\tReason: Job vacated by schedd")

    def terminated(self, second: float, code: int = 0) -> None:
        """Record the job's own end."""
        ended = f"Job terminated.\n\t(1) Normal termination (return value {code})\n"
        whole = (_USAGE + _BYTES).replace("Run ", "Total ")
        self._write(second, 5, f"{ended}{_USAGE}{whole}".rstrip())

    def removed(self, second: float) -> None:
        """Somebody removes it."""
        self._write(second, 9, "Job was aborted.\n\tvia condor_rm (by user me)")

    def _write(self, second: float, kind: int, words: str) -> None:
        at = (self._begin + timedelta(seconds=second)).isoformat(" ", "milliseconds")
        with self._path.open("a") as log:
            log.write(f"{kind:03} ({self._job:03}.{self.proc:03}.000) {at} {words}\n...\n")
