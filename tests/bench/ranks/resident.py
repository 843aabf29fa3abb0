"""The reference trainer in a trial's sandbox; measures the memory of its model."""

import json
import re
from pathlib import Path
from typing import Any

import trial_imports  # type: ignore[import-not-found]  # noqa: F401

from trialfleet.nodes.tabular import ranks
from trialfleet.nodes.tabular import train as trainer

STATUS = Path("/proc/self/status")
train: Any = trainer
made = train.Network
found = {"before": 0}


def kilobytes(name: str) -> int:
    """Return a value of this process in /proc, such as VmRSS (now) or VmHWM (maximum)."""
    (size,) = re.findall(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    return int(size)


def watched(*given: Any) -> Any:
    """Create the network, and measure from now on."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    found["before"] = kilobytes("VmRSS")
    return made(*given)


def held(training: Any) -> None:
    """Count the bytes on the network's device: weights, gradients and the optimiser's state."""
    steps = training.steps
    take = steps.take

    def counted() -> None:
        take()
        weights = [getattr(each, "_local_tensor", each) for each in steps._optimizer.weights]
        found["held"] = max(found.get("held", 0), sum(4 * weight.nbytes for weight in weights))

    steps.take = counted
    fit(training)


train.Network = watched
fit, train.Training.fit = train.Training.fit, held
try:
    ranks.run(train.main)
finally:
    taken = kilobytes("VmHWM") - found["before"]
    Path("resident.json").write_text(
        json.dumps({"resident": taken * 1024, "held": found.get("held", 0)})
    )
