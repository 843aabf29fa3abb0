"""Each system's task: tune the flights' regions with the reference trainer.

Each training writes two lines to `ledger.jsonl`, a begin and an end, in every system. A trial's
outcome is read there, and not from the system's own records.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

REGIONS = ("EWR", "JFK", "LGA")
METRIC = "val_auc"
FLIGHTS = Path(__file__).parents[3] / "workflows" / "examples" / "flights"
LANES = 2  # trials of a region at once; as many as there are slots
SPACE: dict[str, Any] = {
    "learning_rate": {"type": "float", "low": 5.0e-4, "high": 1.0e-2, "log": True},
    "batch_size": {"type": "int", "low": 128, "high": 1024, "log": True},
    "layers": {"type": "int", "low": 1, "high": 3},
    "hidden": {"type": "int", "low": 64, "high": 192, "step": 32},
    "dropout": {"type": "float", "low": 0.0, "high": 0.4},
    "weight_decay": {"type": "float", "low": 1.0e-3, "high": 10.0, "log": True},
}
CONSTANTS = {"epochs": 2}
LEDGER = "ledger.jsonl"


@dataclass(frozen=True)
class Line:
    """A line of the ledger.

    Attributes:
        event: "begin" or "end".
        trial: name of the training within its region; a retry has the same name.
        at: seconds since the epoch.
        pid: the process that trains.
        value: the objective; None at a begin.
        cpu: processor seconds of the training; 0 at a begin.
    """

    event: str
    region: str
    trial: str
    at: float
    pid: int
    value: float | None = None
    cpu: float = 0.0


def read_ledger(path: Path) -> list[Line]:
    """Return the complete lines of a ledger; none if it is missing."""
    if not path.exists():
        return []
    texts = path.read_text().split("\n")[:-1]  # the last is empty, or was cut by a kill
    return [Line(**json.loads(text)) for text in texts]


def write_line(path: Path, line: Line) -> None:
    """Append a line in one write, so that other processes' lines don't mix with it."""
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(ledger, (json.dumps(vars(line)) + "\n").encode())
    finally:
        os.close(ledger)


def data_of(region: str) -> Path:
    """Return the region's table."""
    return FLIGHTS / "data" / f"{region}.npz"


def train(folder: Path, region: str, trial: str, params: dict[str, Any]) -> float:
    """Train in this process, and return the objective; `folder` has the ledger.

    Raises:
        RuntimeError: the training wrote no result.
    """
    sandbox = folder / "sandboxes" / f"{region}-{trial}-{os.getpid()}"
    sandbox.mkdir(parents=True, exist_ok=True)
    description = {
        "schema": 1,
        "region": region,
        "params": {**CONSTANTS, **{name: plain(value) for name, value in params.items()}},
        "seed": 1,
        "mode": "tune",
        "data": [os.path.relpath(data_of(region), sandbox)],
        "objective": {"metric": METRIC, "direction": "maximize"},
    }
    (sandbox / "trial.json").write_text(json.dumps(description))
    return recorded(folder / LEDGER, region, trial, sandbox)


def plain(value: Any) -> Any:
    """Return a value that JSON can represent, because some samplers return NumPy's numbers."""
    return value.item() if isinstance(value, np.generic) else value


def recorded(ledger: Path, region: str, trial: str, sandbox: Path) -> float:
    """Run the reference trainer on `trial.json` in `sandbox`; write a begin and an end."""
    write_line(ledger, Line("begin", region, trial, time.time(), os.getpid()))
    os.environ["TRIALFLEET_TRIAL"] = str(sandbox / "trial.json")
    import torch

    from trialfleet.nodes.tabular import train as trainer

    torch.set_num_threads(1)
    before = time.process_time()
    try:
        trainer.main()
    except SystemExit as left:
        if left.code:
            raise RuntimeError(f"the training left with {left.code}") from None
    result = json.loads((sandbox / "result.json").read_text())
    if result["status"] != "complete":
        raise RuntimeError(f"the training says {result}")
    value = float(result["metrics"][METRIC])
    cpu = time.process_time() - before
    write_line(ledger, Line("end", region, trial, time.time(), os.getpid(), value, cpu))
    return value
