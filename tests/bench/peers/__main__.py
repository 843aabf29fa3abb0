"""The flights' regions tuned by trialfleet, Ray Tune, Celery with Redis, and Optuna with joblib.

Each system has two slots, the same trainer and search space, and the same number of trials. First
nothing is killed. Then each run has one SIGKILL in the middle: of a training process, of the
process that hands out trials, or of all processes. The system may recover by itself. If nothing has
changed for a while, its program is started again, which is counted. `ledger.jsonl` has the
trainings that really happened, results.json those that the system reports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import mean

import platformdirs
import psutil

from tests.bench.peers import observer
from tests.bench.peers.outcome import Outcome, costs, in_a_line, losses
from tests.bench.peers.systems.arguments import RESULTS
from tests.bench.peers.workload import FLIGHTS, LEDGER, REGIONS, Line, read_ledger

SYSTEMS = {
    "trialfleet": "on_htcondor",
    "Ray Tune": "ray_tune",
    "Celery, Redis": "celery_redis",
    "Optuna, joblib": "optuna_joblib",
}
KILLS = ("none", "worker", "driver", "machine")
DRIVERS = {"trialfleet": ("programs serve",)}  # other processes that hand out trials
STILL_SECONDS = 90.0  # without a beginning or an end, until a person is taken to be needed
MOST_STARTS = 4


def main() -> None:
    """Measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=20, help="of each of 3 regions [20]")
    parser.add_argument("--kill-trials", type=int, default=8, help="the same, with kills [8]")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--kills", nargs="+", choices=KILLS, default=list(KILLS))
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    given = parser.parse_args()
    subprocess.run([sys.executable, str(FLIGHTS / "prepare.py")], check=True)
    observer.adopt_orphans()
    outcomes = []
    for kill in given.kills:
        trials = given.trials if kill == "none" else given.kill_trials
        for system in given.systems:
            outcomes.append(measured(system, kill, trials))
            print(in_a_line(outcomes[-1]), flush=True)
    print("\n".join([*costs(outcomes), "", *losses(outcomes)]))
    if given.out:
        given.out.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")


def measured(system: str, kill: str, trials: int) -> Outcome:
    """Run a system in an empty folder, and return its outcome."""
    folder = platformdirs.user_cache_path("trialfleet") / "peers"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ledger = folder / LEDGER
    cpu, begun = observer.children_cpu(), time.time()
    try:
        with observer.Memory(lambda: {line.pid for line in read_ledger(ledger)}) as memory:
            starts = driven(system, kill, trials, folder)
        seconds = time.time() - begun
    finally:
        observer.kill_everything()
    lines = read_ledger(ledger)
    ended = [line for line in lines if line.event == "end"]
    results = json.loads((folder / RESULTS).read_text()) if (folder / RESULTS).exists() else {}
    counts = [len(results.get(region, [])) for region in REGIONS]
    per_trial = Counter((line.region, line.trial) for line in ended)
    return Outcome(
        system=system,
        kill=kill,
        trials=trials,
        seconds=seconds,
        overhead_cpu=observer.children_cpu() - cpu - sum(line.cpu for line in ended),
        overhead_mb=memory.machinery,
        trainers_mb=memory.trainers,
        best_halfway=mean(best_of(ended, region, trials // 2) for region in REGIONS),
        best=mean(best_of(ended, region, trials) for region in REGIONS),
        lost=sum(max(0, trials - count) for count in counts),
        surplus=sum(max(0, count - trials) for count in counts),
        retrained=sum(count - 1 for count in per_trial.values()),
        wasted=len(lines) - 2 * len(ended),
        by_hand=starts - 1,
        still_seconds=longest_still([begun, *(line.at for line in lines), begun + seconds]),
    )


def best_of(ended: Sequence[Line], region: str, trials: int) -> float:
    """Return the best objective of a region's first trainings; NaN if there are none."""
    values = [line.value for line in ended if line.region == region and line.value is not None]
    return max(values[:trials], default=float("nan"))


def longest_still(moments: Sequence[float]) -> float:
    """Return the longest time between two successive moments."""
    ordered = sorted(moments)
    return max(after - before for before, after in pairwise(ordered))


def driven(system: str, kill: str, trials: int, folder: Path) -> int:
    """Start a system, kill once in the middle, and return how often the system was started."""
    program = started(system, folder, trials)
    starts, killed = 1, kill == "none"
    last = time.time()
    while not (folder / RESULTS).exists() or program.poll() is None:
        time.sleep(0.2)
        observer.reap_orphans(program.pid)
        lines = read_ledger(folder / LEDGER)
        if (
            not killed
            and sum(line.event == "end" for line in lines) >= trials
            and kill_once(system, kill, program, lines)
        ):
            killed, last = True, time.time()
        last = max([last, *(line.at for line in lines)])
        ended = program.poll() is not None and not (folder / RESULTS).exists()
        if time.time() - last > STILL_SECONDS or (ended and nothing_trains(lines, last)):
            if starts == MOST_STARTS:
                break
            with suppress(ProcessLookupError):
                program.kill()
            program.wait()
            program = started(system, folder, trials)
            starts, last = starts + 1, time.time()
    return starts


def started(system: str, folder: Path, trials: int) -> subprocess.Popen[bytes]:
    """Start a system's program."""
    module = f"tests.bench.peers.systems.{SYSTEMS[system]}"
    command = [sys.executable, "-m", module, str(folder), "--trials", str(trials)]
    libraries = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    threads = dict.fromkeys(libraries, "1")
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            command, env={**os.environ, **threads}, stdout=output, stderr=output
        )


def kill_once(
    system: str, kill: str, program: subprocess.Popen[bytes], lines: Sequence[Line]
) -> bool:
    """Kill the processes that `kill` names; return False if no training runs now."""
    ended = {(line.region, line.trial) for line in lines if line.event == "end"}
    training = [line.pid for line in lines if (line.region, line.trial) not in ended]
    if kill == "machine":
        observer.kill_everything(program.pid)
    elif kill == "driver":
        words = DRIVERS.get(system, ())
        others = [p for p in observer.descendants() if any(w in command_of(p) for w in words)]
        program.kill()
        observer.kill(others)
    else:
        living = [pid for pid in training if psutil.pid_exists(pid)]
        if not living:
            return False
        observer.kill([psutil.Process(living[-1])])
    return True


def command_of(process: psutil.Process) -> str:
    """Return a process's command line; empty if the process has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def nothing_trains(lines: Sequence[Line], last: float) -> bool:
    """Return whether ten seconds have passed since `last`, and no process of the ledger exists."""
    return time.time() - last > 10 and not any(psutil.pid_exists(line.pid) for line in lines)


if __name__ == "__main__":
    main()
