"""Two ranks that sum arrays, in a trial's sandbox; writes the seconds of each sum."""

import json
import time
from pathlib import Path

import torch
import trial_imports  # type: ignore[import-not-found]  # noqa: F401
from torch import distributed

from trialfleet.nodes.tabular import ranks

REPEATS = 200
SMALL, LARGE = 1024, 4 << 20  # bytes

team = ranks.Ranks.join()
found: dict[int, list[float]] = {SMALL: [], LARGE: []}
for size, times in found.items():
    numbers = torch.ones(size // 4)
    for _ in range(REPEATS):
        begun = time.perf_counter()
        distributed.all_reduce(numbers)
        times.append(time.perf_counter() - begun)
        numbers.fill_(1.0)
Path("linked.json").write_text(json.dumps(found))
distributed.destroy_process_group()
