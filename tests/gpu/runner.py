"""A runner of steps, one after the other, that rewrites one file of results after each.

Each step is a process group of its own. At its limit it is ended and the next one begins; what it
has found until then is kept. The standard library alone: torch may be what is broken.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.gpu.clocks import Clocks
from tests.gpu.steps import DRY, PART, NothingFoundError, Step, find_tool

ROOT = Path(__file__).parents[2]
SCHEMA = 1
SLOWER = 5  # times as long may a dry run take: processors are slow, shared by others
GRACE = 3.0  # s between asking a step to end and ending it
KILLED = 1.0  # s that a killed step gets to vanish
KEPT = 4000  # characters of a step's output, if it isn't done
DONE, FAILED, LATE, ABSENT = "done", "failed", "over its limit", "not here"


class Runner:
    """One run of all steps.

    Attributes:
        record: everything, as it is written.
    """

    def __init__(self, folder: Path, out: Path, command: str, *, dry: bool) -> None:
        self.folder, self.out = folder, out
        self.began = time.monotonic()
        self.record: dict[str, Any] = {
            "schema": SCHEMA,
            "dry": dry,
            "command": command,
            "commit": commit(),
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": 0.0,
            "steps": [],
        }

    def run(self, steps: Sequence[Step]) -> bool:
        """Run the steps; tell whether none failed or was too late."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        due = 0.0
        with Clocks() as clocks:
            for step in steps:
                due += step.seconds * (SLOWER if self.record["dry"] else 1)
                began = time.monotonic()
                limit = self.began + due - began
                print(f"{step.name}: {step.title} (at most {limit:.0f} s)", flush=True)
                found = self.step(step, limit)
                print(f"    {found['state']} after {found['seconds']} s", flush=True)
                if gpu := clocks.since(began):
                    found["gpu"] = gpu
                self.record["steps"].append(found)
                self.record["seconds"] = round(time.monotonic() - self.began, 1)
                self.write()
        return all(step["state"] in {DONE, ABSENT} for step in self.record["steps"])

    def step(self, step: Step, limit: float) -> dict[str, Any]:
        """Run one step; return how it ended and what it found."""
        record = {"name": step.name, "title": step.title, "limit": round(limit, 1), "seconds": 0.0}
        part, log = (self.folder / f"{step.name}.{kind}" for kind in ("json", "log"))
        for left in (part, log):
            left.unlink(missing_ok=True)
        tool = find_tool(step.needs) if step.needs else ""
        if tool is None:
            return record | {"state": ABSENT, "found": None, "said": f"no {step.needs} here"}
        words = [word.replace(PART, str(part)) for word in step.command]
        began = time.monotonic()
        with (
            log.open("wb") as output_file,
            part.open("wb") if step.prints else log.open("ab") as out,
        ):
            code = finish(
                [tool or words[0], *words[1:]],
                self.environment(step, part),
                limit,
                out,
                output_file,
            )
        record["seconds"] = round(time.monotonic() - began, 1)
        log_text = log.read_text(encoding="utf-8", errors="replace")
        state = LATE if code is None else FAILED if code else DONE
        found = None
        try:
            found = step.read(part, log_text)
        except (OSError, ValueError, LookupError, NothingFoundError) as error:
            log_text += f"\nnothing to read: {error}"
            state = FAILED if state == DONE else state
        record |= {"state": state, "exit_code": code, "found": found}
        return record | ({} if state == DONE else {"said": log_text[-KEPT:]})

    def environment(self, step: Step, part: Path) -> dict[str, str]:
        """Return a step's environment: the tree itself is the library, and the kernels lie here."""
        own = {name: value.replace(PART, str(part)) for name, value in step.environment.items()}
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        given = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others' plugins need missing packages
            "TRIALFLEET_KERNELS": os.environ.get(
                "TRIALFLEET_KERNELS", str(self.folder / "kernels")
            ),
            DRY: "1" if self.record["dry"] else "",
        }
        return {**os.environ, **given, **own}

    def write(self) -> None:
        """Put the record in its file's place: the previous one or the new one, at any kill."""
        beside = self.out.with_suffix(".new")
        beside.write_text(json.dumps(self.record, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.out)


def finish(
    words: list[str],
    environment: dict[str, str],
    limit: float,
    out: IO[bytes],
    errors: IO[bytes],
) -> int | None:
    """Run a program and all that it starts to the end, or to its limit; return its exit code.

    Returns:
        None if it came to its limit.
    """
    program = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=errors,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        return program.wait(max(0.1, limit - GRACE))
    except subprocess.TimeoutExpired:
        end(program, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(GRACE)
        return None
    finally:
        end(program, signal.SIGKILL)  # and all processes that it left
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the driver stays
            program.wait(KILLED)


def end(program: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Send a signal to a program's whole group, if any of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, how)


def commit() -> str | None:
    """Return what is measured: git's name of it, with "-dirty" where files differ from that."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with contextlib.suppress(OSError):
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        return ended.stdout.strip() or None
    return None
