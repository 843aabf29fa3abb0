"""A trainer for tests whose curve is (x - 0.3)² + 1/step, and which waits where x is bad.

A trial with x > 0.6 stays at step WAITS_AT until its order to stop, and fails without one: so a
test of early stopping never depends on who is faster. `mood` says how it listens:

listens, ignores  looks, or never looks, whether it is to stop
saves             answers SIGTERM by a checkpoint, and never looks
silent            never reports, and never waits
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STEPS, WAITS_AT, WAIT_SECONDS = 30, 20, 150.0

order = json.loads(Path(os.environ["TRIALFLEET_TRIAL"]).read_text())
params = order["params"]
mood, x = params.get("mood", "listens"), params["x"]
begun = time.monotonic()


def is_ordered_to_stop() -> bool:
    return mood == "listens" and Path("stop.json").stat().st_size > 0


def leave(status: str, loss: float) -> None:
    result = {"schema": 1, "status": status, "metrics": {"loss": loss}, "seconds": 1.0}
    Path("result.json").write_text(json.dumps(result))
    sys.exit(0)


def save(*_: object) -> None:
    Path("checkpoint/state").write_text("saved")
    sys.exit(85)


if mood == "saves":
    signal.signal(signal.SIGTERM, save)
print(f"pid {os.getpid()}", flush=True)
time.sleep((0, 0, 3, 1)[order["trial"] % 4])  # some are slow to import
for step in range(1, STEPS + 1):
    loss = (x - 0.3) ** 2 + 1 / step
    if mood != "silent":
        with Path("progress.jsonl").open("a") as progress:
            progress.write(json.dumps({"step": step, "metrics": {"loss": loss}}) + "\n")
    while x > 0.6 and step == WAITS_AT and mood != "silent" and order["mode"] == "tune":
        if is_ordered_to_stop():
            leave("stopped", loss)
        if time.monotonic() - begun > WAIT_SECONDS:
            sys.exit("nobody told it to stop")
        time.sleep(0.1)
    time.sleep(params.get("seconds", 0.02))
if order["mode"] == "final":
    Path("model/weights").write_text(str(x))
leave("complete", loss)
