"""`python -m tests.fuzz`: rounds of new examples until the time is over.

A round is a share of each kind of generated case, then every property of the tests with a seed of
its own. At least one round is run to its end. A failure is printed at once, with the command that
shows it again, and once more at the end; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from tests.fuzz.check import CASES

ROOT = Path(__file__).parents[2]
SHARE = 500  # cases of a kind in a round
SLOWEST_PROPERTY = 1800  # seconds until pytest-timeout ends it


def main() -> int:
    """Run rounds; returns the exit code."""
    arguments = _arguments()
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    end = time.monotonic() + 60 * arguments.minutes
    failed: list[str] = []
    with tempfile.TemporaryDirectory(dir=place(), ignore_cleanup_errors=True) as folder:
        if arguments.case is not None:
            return _one_case(arguments.only, seed, arguments.case, Path(folder))
        for part in range(10**6):
            for line in _round(seed, part, arguments.only, Path(folder)):
                failed.append(line)
                print(f"FAILED {line}", flush=True)
            if time.monotonic() > end:
                break
    print("\n".join([f"{len(failed)} failed", *failed]), flush=True)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="no new round after so long")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--only", choices=[*CASES, "properties"], help="one kind alone")
    parser.add_argument("--case", type=int, help="this case of --only alone, its folder kept")
    arguments = parser.parse_args()
    if arguments.case is not None and arguments.only not in CASES:
        parser.error("--case needs --only with a kind of case")
    return arguments


def place() -> Path:
    """Return a folder for the files of the cases."""
    place = platformdirs.user_cache_path("trialfleet") / "fuzz"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _round(seed: int, part: int, only: str | None, folder: Path) -> Iterator[str]:
    for kind in CASES if only is None else {only} & set(CASES):
        begin = time.monotonic()
        yield from _share(kind, seed, part * SHARE, folder)
        _progress(kind, (part + 1) * SHARE, begin)
    if only in {None, "properties"}:
        begin = time.monotonic()
        yield from _properties(seed + part)
        _progress("properties", part + 1, begin)


def _progress(kind: str, count: int, begin: float) -> None:
    now = time.strftime("%H:%M:%S")
    what = f"{count} rounds" if kind == "properties" else f"{count} cases"
    print(f"{now} {kind}: {what}, the last in {time.monotonic() - begin:.0f} s", flush=True)


def _share(kind: str, seed: int, first: int, folder: Path) -> Iterator[str]:
    """Yield the cases of a round; a worker that dies takes one case with it."""
    end = first + SHARE
    while first < end:
        program = [sys.executable, "-m", "tests.fuzz.worker"]
        done = subprocess.run(
            [*program, kind, str(seed), str(first), str(end - first), str(folder)],
            cwd=ROOT,
            env=_environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        last = first - 1
        for line in map(json.loads, done.stdout.splitlines()):
            last = line.get("case", last)
            if "failed" in line:
                print(line["traceback"])
                yield _again(kind, seed, line["failed"])
        if done.returncode:
            print(done.stderr)
            last = max(last, first)
            yield f"{_again(kind, seed, last)}   (it hung, or ended its process)"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        first = last + 1


def _again(kind: str, seed: int, number: int) -> str:
    return f"python -m tests.fuzz --only {kind} --seed {seed} --case {number}"


def _environment(folder: Path) -> dict[str, str]:
    """No pool, no account and no settings of the person who runs this."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CONDOR", "_CONDOR"))}
    return kept | {
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "TRIALFLEET_POOL": str(folder / "no-such-pool"),
        "CONDOR_CONFIG": str(folder / "no-such-config"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "OMP_NUM_THREADS": "1",
    }


def _one_case(kind: str, seed: int, number: int, folder: Path) -> int:
    """Run one case alone; its files are kept where it says."""
    kept = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=place()))
    print(f"its files: {kept / f'{kind}-{number}'} (removed if it goes well)", flush=True)
    program = [sys.executable, "-m", "tests.fuzz.worker"]
    done = subprocess.run(
        [*program, kind, str(seed), str(number), "1", str(kept)],
        cwd=ROOT,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    failed = [line for line in map(json.loads, done.stdout.splitlines()) if "failed" in line]
    for line in failed:
        print(line["traceback"])
    return done.returncode or len(failed)


def _properties(seed: int) -> Iterator[str]:
    """Every test that hypothesis draws examples for, once."""
    files = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "from hypothesis" in path.read_text(encoding="utf-8")
    )
    options = ["-m", "hypothesis", f"--hypothesis-seed={seed}", f"--timeout={SLOWEST_PROPERTY}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *files],
        cwd=ROOT,
        env={**os.environ, "TRIALFLEET_EXAMPLES": "new"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-20_000:])
        marks = ("FAILED tests/", "ERROR tests/")  # a line that a test logged may begin alike
        shown = [line for line in done.stdout.splitlines() if line.startswith(marks)]
        for line in shown or ["ERROR pytest itself"]:
            name = line.split(" - ")[0].split(" ", 1)[1]
            yield f"TRIALFLEET_EXAMPLES=new pytest --hypothesis-seed={seed} '{name}'"


if __name__ == "__main__":
    sys.exit(main())
