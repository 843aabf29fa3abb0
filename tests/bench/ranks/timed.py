"""The reference trainer in a trial's sandbox; writes the seconds of each step."""

import json
import time
from pathlib import Path
from typing import Any

import torch
import trial_imports  # type: ignore[import-not-found]  # noqa: F401

from trialfleet.nodes.tabular import graph_steps, ranks, train

kind: Any = graph_steps.GraphSteps
take = kind.take
found: list[float] = []


def timed(steps: Any) -> None:
    """Take a step, and record its time."""
    begun = time.perf_counter()
    take(steps)
    found.append(time.perf_counter() - begun)


kind.take = timed
torch.set_num_threads(1)
try:
    ranks.run(train.main)
finally:
    Path("timed.json").write_text(json.dumps(found))
