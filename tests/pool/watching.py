"""Looking at a run and at its processes."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.processes import is_program
from trialfleet import Run
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder

WaitFor = Callable[..., None]
SLOW = {"steps": 8, "seconds": 0.25}


@contextmanager
def active(pool: Pool) -> Iterator[Pool]:
    """Talk to a private pool for a while."""
    before = {name: os.environ[name] for name in ("CONDOR_CONFIG", "PATH") if name in os.environ}
    try:
        pool.up()
        use(pool.environment())
        yield pool
    finally:
        for name in ("CONDOR_CONFIG", "PATH"):
            os.environ.pop(name, None)
        use(before)


def finished_trials(run: Run) -> int:
    """Return the number of finished trials."""
    return sum(r.state.is_finished for r in run.trials())


def processes_with(*words: str) -> list[psutil.Process]:
    return _processes(lambda line: all(any(word in part for part in line) for word in words))


def programs_of(folder: Path, name: str) -> list[psutil.Process]:
    """Return the processes of one of trialfleet's programs, for a run or a pool in a folder."""
    return _processes(lambda line: is_program(line, name) and str(folder) in line)


def _processes(matches: Callable[[list[str]], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if matches(line):
            found.append(process)
    return found


def dagmans(run: Run) -> list[psutil.Process]:
    """Return the run's DAGMan processes; a region's has its folder only as working directory."""
    found = []
    for process in processes_with("condor_dagman"):
        with suppress(psutil.Error):  # it has just ended
            if any(str(run.folder) in word for word in [process.cwd(), *process.cmdline()]):
                found.append(process)
    return found


def services(run: Run) -> list[psutil.Process]:
    """Return the run's optimiser services: the listening one, and one that waits for its end."""
    return programs_of(run.folder, "serve")


def assert_exactly_once(run: Run, trials: int) -> None:
    """Check that trials are recorded once: no gaps, nodes without doubles, values as computed."""
    for region in run.study.region_table:
        records = run.trials(region)
        assert [r.trial for r in records] == list(range(trials))
        assert max(Counter(r.node for r in records).values()) == 1
        for record in records:
            assert record.state in {"complete", "failed"}
            if record.state == "complete":
                assert record.value == pytest.approx((record.params["x"] - 0.3) ** 2)


def steps_run(place: TrialFolder) -> list[int]:
    """Return the steps that a trial reported, over all its lives."""
    return [json.loads(line)["step"] for line in place.progress.read_text().splitlines()]


def put_before_client(run: Run, program: str) -> None:
    """Have the scripts of a run's graphs call this program; what they called is `client.own`."""
    client = RunFolder(run.folder).client
    client.rename(client.with_name("client.own"))
    client.write_text(program)
    client.chmod(0o755)


def kill_all(pool: Pool, wait_for: WaitFor) -> None:
    """Kill what there is, and what was being started meanwhile: it would live on for long."""

    def none_left() -> bool:
        processes = pool.processes()
        for process in processes:
            with suppress(ProcessLookupError):  # ended with its parent, killed just before
                os.kill(process.pid, signal.SIGKILL)
        return not processes

    wait_for(none_left)
