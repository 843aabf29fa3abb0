"""A storm's trainer: minimises (x - 0.3)², and records when each trial began and ended in it.

With the constant `stays`, one process trains trial after trial, and its command line shows that;
otherwise each trial has a process. The constant `ledger` names the file for the records: a line for
each begin and each end, with the time of a monotonic clock.
"""

import json
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # before the agent's socket is taken
    order = json.loads(Path(os.environ["TRIALFLEET_TRIAL"]).read_text())
    if order["params"].get("stays") and "stays" not in sys.argv:
        os.execv(sys.executable, [sys.executable, *sys.argv, "stays"])  # noqa: S606

from trial import Trial, run, start

BEST_X = 0.3


def train(t: Trial) -> None:
    """Train one trial, in the working directory, which has the trial's name."""
    note(t, "begins")
    saved = t.restore()
    done = int((saved / "steps").read_text()) if saved else 0
    x, steps = t.params["x"], t.params["steps"]
    loss = (x - BEST_X) ** 2
    for step in range(done + 1, steps + 1):
        time.sleep(t.params["seconds"])
        t.report(step, loss=loss + (1 / step - 1 / steps if t.params.get("curve") else 0))
        if t.should_stop():
            note(t, "ends")
            t.stop()
        if t.interrupted or step % t.params.get("yield_every", sys.maxsize) == 0:
            with t.checkpoint() as folder:
                (folder / "steps").write_text(str(step))
            t.yield_node()
    if t.mode == "final":
        Path("model", "weights").write_text(str(x))
    note(t, "ends")
    t.complete(loss=loss)


def note(t: Trial, what: str) -> None:
    """Add a line to the ledger."""
    who = {"region": t.region, "trial": Path.cwd().name, "pid": os.getpid()}
    line = json.dumps({"time": time.monotonic(), **who, "what": what}) + "\n"
    ledger = os.open(t.params["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(ledger, line.encode())  # at once: whole lines, of all trainers together
    os.close(ledger)


if __name__ == "__main__":
    if "stays" in sys.argv:
        run(train)
    train(start())
