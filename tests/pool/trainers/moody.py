"""A trainer for tests: minimises (x - 0.3)² and misbehaves as its parameter `mood` says.

Uses the JSON contract alone and starts in 20 ms, so that tests of HTCondor are not tests of torch.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

order = json.loads(Path(os.environ["TRIALFLEET_TRIAL"]).read_text())
params = order["params"]
mood = params.get("mood", "good")
if order["mode"] != "tune":
    mood = params.get(f"{order['mode']}_mood", "good")
memory = Path("checkpoint/steps")  # steps of previous lives of this job
done = int(memory.read_text()) if memory.exists() else 0


def save(steps: int) -> None:
    Path("checkpoint/beside").write_text(str(steps))
    Path("checkpoint/beside").replace(memory)


def leave(*_: object) -> None:
    save(done)
    sys.exit(85)


def evaluate() -> None:
    """Measure models: the weights are x, the loss their distance from where today's optimum is."""
    models = {}
    for name, folder in order["models"].items():
        x = float(Path(folder, "weights").read_text())
        models[name] = {"metrics": {"loss": (x - params.get("optimum", 0.3)) ** 2}}
    Path("result.json").write_text(json.dumps({"status": "complete", "models": models}))
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
print(f"pid {os.getpid()} from step {done}", flush=True)
if mood == "fails":
    sys.exit("I always fail")
if mood == "exit 127":
    print("fit: not found", file=sys.stderr)
    sys.exit(127)
if mood == "raises":
    print(1 / 0)
if mood == "dies":
    os.kill(os.getpid(), signal.SIGSEGV)
if mood == "sometimes" and order["trial"] % 2 == 1:
    sys.exit("I fail on odd trials")
if mood == "rejects" and params["x"] > 0.5:
    Path("result.json").write_text('{"status": "failed", "error": "x is too large"}')
    sys.exit(64)
if litter := params.get("litter"):  # a folder: each start leaves a process there that never ends
    for process_file in Path(litter).iterdir():
        left_by = process_file.read_text().split()[0]
        if left_by.startswith(order["region"] + ".") and Path("/proc", process_file.name).exists():
            sys.exit(f"what {left_by} started still runs")
    child = os.fork()
    if not child:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    beside = Path(f"{litter}.{child}")
    beside.write_text(f"{order['node']} {os.getppid()}")
    beside.rename(Path(litter, str(child)))  # complete even if a process is killed meanwhile
if gate := params.get("gate"):  # a folder: each node waits in it for a file of its name
    Path(gate, f"{order['node']}.waits").touch()
    while not (Path(gate) / order["node"]).exists():
        time.sleep(0.05)
if order["mode"] == "evaluate" and mood == "good":
    evaluate()
if mood == "hangs":
    time.sleep(3600)
if mood == "garbage":
    Path("result.json").write_text("}{ not JSON")
    sys.exit(0)
if mood == "silent":
    sys.exit(0)
if mood == "fills":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with Path("checkpoint/big").open("wb") as file:
        for _ in range(200):
            file.write(os.urandom(1 << 20))
    time.sleep(3600)

if mood == "sparse":  # no disk is used here, but the sent package has all of it
    with Path("checkpoint/big").open("wb") as file:
        file.truncate(3 << 30)
    if params.get("again"):
        sys.exit(85)
if mood == "swells":
    ballast = os.urandom(1 << 20) * 600
    time.sleep(3600)
if mood == "shares":  # 15 MB that four processes share: not 60 more
    ballast = os.urandom(1 << 20) * 15
    children = [os.fork() for _ in range(3)]
    time.sleep(15)
    if 0 in children:
        os._exit(0)

for step in range(done, params.get("steps", 1)):
    time.sleep(params.get("seconds", 0.2))
    done = step + 1
    metrics = {}
    if "curve" in params:  # it falls towards the result, and may be cut short
        metrics = {"loss": (params["x"] - 0.3) ** 2 + 1 / done - 1 / params["steps"]}
    with Path("progress.jsonl").open("a") as progress:
        progress.write(json.dumps({"step": done, "metrics": metrics, "time": time.time()}) + "\n")
    if Path("stop.json").exists() and Path("stop.json").stat().st_size:
        Path("result.json").write_text(json.dumps({"status": "stopped", "metrics": metrics}))
        sys.exit(0)
    if params.get("save_every") and done % params["save_every"] == 0:
        save(done)
        if params.get("upload"):
            sys.exit(85)

loss = float("nan") if mood == "nan" else (params["x"] - 0.3) ** 2
if order["mode"] == "final" and mood != "no model":
    name = "metrics.json" if mood == "reserved name" else "weights"
    Path(f"model/{name}").write_text(str(params["x"]))
metrics = {"accuracy": 1.0} if mood == "other metric" else {"loss": loss}
result = {"schema": 1, "status": "complete", "metrics": metrics, "seconds": 0.2}
Path("result.json").write_text(json.dumps(result))
