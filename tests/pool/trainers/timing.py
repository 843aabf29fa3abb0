"""A trainer for tests that says something when its parameters say: nothing, late, or at the end.

first, silence   seconds before its first report, and after it
saves            it leaves once with 85 after the first report, and begins again; before that it
                 tampers with what is started then
attacks          it also tells what attacks.py could reach; another process of its tries too
"""

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

params = json.loads(Path(os.environ["TRIALFLEET_TRIAL"]).read_text())["params"]
saved = Path("checkpoint/saved")
lives = len(saved.read_text()) if saved.exists() else 0


def report(step: int) -> None:
    with Path("progress.jsonl").open("a") as progress:
        progress.write(json.dumps({"step": step, "metrics": {"loss": params["x"] + lives}}) + "\n")


def tamper() -> None:
    """Put a program of one's own where the next first process would run it."""
    programs = {"condor_exec.exe", "agent", "agent.pyz"}
    here = {path.name: path for path in Path("../..").iterdir() if path.name in programs}
    assert here.keys() & {"condor_exec.exe", "agent"}
    for program in here.values():
        program.unlink()
        program.write_text("#!/bin/sh\n'exec' 'echo' 'taken'\n")
        program.chmod(0o755)


print(f"life {lives}", flush=True)
time.sleep(params.get("first", 0))
report(1)
time.sleep(params.get("silence", 0))
if params.get("saves") and not lives:
    saved.write_text("x")
    tamper()
    sys.exit(85)
if params.get("attacks"):
    print(json.dumps(import_module("attacks").found()), flush=True)
    script = "import attacks, json; print(json.dumps(attacks.found()))"
    subprocess.run([sys.executable, "-c", script], check=True)
report(2)
result = {"status": "complete", "metrics": {"loss": params["x"] + lives}}
Path("result.json").write_text(json.dumps(result))
