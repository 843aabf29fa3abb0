"""HEBO as a rival, in a separate process and environment: it requires NumPy below 1.25."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.optimizer.runs import ROOT
from trialfleet.optimizer.space import SearchSpace

FOLDER = ROOT / "build" / "bench-hebo"
PYTHON = FOLDER / "bin" / "python"
_READY = FOLDER / "ready"
_HERE = Path(__file__).parent


@cache
def missing() -> str:
    """Create HEBO's environment if it is missing; return why that failed, or an empty text."""
    if _READY.exists():
        return ""
    print(f"HEBO's environment is made in {FOLDER}", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    install = [str(PYTHON), "-m", "pip", "install", "--quiet"]
    for command in (
        [sys.executable, "-m", "venv", str(FOLDER)],
        [*install, f"torch=={version('torch')}"],
        [*install, "--no-deps", "-r", str(_HERE / "hebo-requirements.txt")],
        [str(PYTHON), "-c", "import hebo.optimizers.hebo"],
    ):
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            return f"{' '.join(command)} ended with {made.returncode}:\n{made.stderr[-2000:]}"
    _READY.touch()
    return ""


class Hebo:
    """HEBO 0.3.6 with its own defaults, which learns from finished trials.

    It ignores pending trials. Its evolutionary search ends with several points that are good by one
    of three acquisition functions; one of the points is drawn.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._entries = space.parameters
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [PYTHON, _HERE / "hebo_process.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        given = [self._described(name, entry) for name, entry in self._entries.items()]
        self._send({"space": given, "seed": seed})

    def ask(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self._send({"ask": True})
        assert self._process.stdout
        answer = self._process.stdout.readline()
        if not answer:
            ended = self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"HEBO's process ended with {ended}: {self._errors.read()[-2000:]}")
        found = json.loads(answer)
        point = {
            name: entry.choices[int(found[name])]
            if entry.type == "categorical"
            else entry.nearest(found[name])
            for name, entry in self._entries.items()
        }
        return found, self._space.canonical(point)

    def tell(self, handle: dict[str, Any], loss: float) -> None:
        self._send({"tell": [handle, loss]})

    def __del__(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    @staticmethod
    def _described(name: str, entry: Any) -> dict[str, Any]:
        if entry.type == "categorical":
            numbers = [str(number) for number in range(len(entry.choices))]
            return {"name": name, "type": "cat", "categories": numbers}
        kinds = {"float": "num", "int": "int"}, {"float": "pow", "int": "pow_int"}
        kind = kinds[entry.log][entry.type]
        return {"name": name, "type": kind, "lb": entry.low, "ub": entry.high}
