"""Presses Ctrl-C at random moments of `trialfleet run`, again and again, and counts what came out.

    python -m tests.pool.ctrl_c FOLDER [--times 150] [--seconds 8] [--seed 1] [--at-once 2]

Each attempt is a run in a terminal of its own on one pool. It is right when the command ends with
130 and says that the run continues exactly if the job queue has the run.
"""

from __future__ import annotations

import argparse
import os
import pty
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.pool_settings import configured_pool
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.dagman.job_queue import runs_in_progress

COMMAND = (sys.executable, "-m", "trialfleet")
PATIENCE = 60  # seconds for a command that was interrupted to end
RIGHT = ("goes on", "nothing submitted", "before the program's first line")
STUDY = """
name: demo
regions: [A]
objective: {metric: loss, direction: minimize}
search_space: {x: {type: float, low: 0.0, high: 1.0}, seconds: 1, steps: 100}
budget: {trials: 1, lanes: 1}
trainer: {command: [python3, moody.py], files: [moody.py]}
accelerator: cpu
resources: {memory: 64MB, disk: 20MB}
"""


def write_study(folder: Path) -> Path:
    """Write a study whose only trial would take long."""
    trainer = Path(__file__).parent / "trainers" / "moody.py"
    (folder / trainer.name).write_bytes(trainer.read_bytes())
    (folder / "study.yaml").write_text(STUDY)
    return folder / "study.yaml"


def press(pool: Pool, study: Path, out: Path, delay: float) -> tuple[str, str]:
    """Run a study, press Ctrl-C after `delay` seconds; return what came of it, and the screen."""
    person, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", str(study), "--out", str(out)],
        env={**os.environ, **pool.environment(), "PYTHONFAULTHANDLER": "1", "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    screen = read(person, delay)
    os.killpg(process.pid, signal.SIGINT)
    screen += read(person, PATIENCE)
    os.close(person)
    process.kill()  # it has ended, as it should, or hangs
    code = process.wait()
    submitted = out in runs_in_progress(pool.environment())
    remove(pool, out)
    return verdict(code, screen, submitted=submitted), screen


def read(terminal: int, seconds: float) -> str:
    """Return the output to a terminal in this number of seconds, or until its program ends."""
    deadline, chunks = time.monotonic() + seconds, []
    with selectors.DefaultSelector() as selector:
        selector.register(terminal, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                try:
                    chunks.append(os.read(terminal, 65536))
                except OSError:  # no process has it open any more
                    break
    return b"".join(chunks).decode(errors="replace")


def remove(pool: Pool, out: Path) -> None:
    """Take a run out of the job queue."""
    subprocess.run(
        ["condor_rm", "-constraint", f'TrialfleetFolder == "{out}"'],
        env={**os.environ, **pool.environment()},
        capture_output=True,
        check=False,
    )


def verdict(code: int, screen: str, *, submitted: bool) -> str:
    """Return what an interrupted command did, in words; one of RIGHT if that is as it should be."""
    if code == 130 and ("the run continues" in screen) == submitted:
        if submitted:
            return "goes on"
        if "nothing was submitted" in screen:
            return "nothing submitted"
    if code == -signal.SIGINT and not submitted and "command_line" not in screen:
        return "before the program's first line"  # Python itself was starting
    last = screen.strip().splitlines()[-1:] or [""]
    return f"exit {code}, {'' if submitted else 'not '}submitted: {last[0].strip()[:60]}"


def main() -> None:
    """Press Ctrl-C many times on a pool of its own; exit 1 if anything came out wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="an empty or new folder")
    parser.add_argument("--times", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=8.0, help="the latest Ctrl-C")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" ignores it
    pool, study = configured_pool(folder / "pool", cpus=4), write_study(folder)
    chance = random.Random(given.seed)  # noqa: S311 - repeatable is what it has to be
    delays = [chance.uniform(0.1, given.seconds) for _ in range(given.times)]

    def attempt(number: int) -> str:
        what, screen = press(pool, study, folder / "runs" / str(number), delays[number])
        if what not in RIGHT:
            print(
                f"-- {number}, after {delays[number]:.3f} s: {what}\n{screen[-2000:]}", flush=True
            )
        return what

    pool.up()
    try:
        with ThreadPoolExecutor(given.at_once) as executor:
            counts = Counter(executor.map(attempt, range(given.times)))
    finally:
        pool.down(grace=5)
    for what, count in counts.most_common():
        print(f"{count:5}  {what}")
    sys.exit(0 if set(counts) <= set(RIGHT) else 1)


if __name__ == "__main__":
    main()
