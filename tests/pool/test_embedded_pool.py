from __future__ import annotations

import subprocess
from pathlib import Path

from trialfleet.infra.pool import Pool


def run_job(folder: Path, program: str, *lines: str) -> str:
    """Run `program` (a shell script) as a job of the active pool and return its output."""
    (folder / "job.sh").write_text(f"#!/bin/sh\n{program}\n")
    description = [
        "executable = job.sh",
        "output = out",
        "error = err",
        "log = log",
        "should_transfer_files = YES",
        *lines,
    ]
    (folder / "job.sub").write_text("\n".join([*description, "queue", ""]))
    subprocess.run(["condor_submit", "job.sub"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["condor_wait", "-wait", "60", "log"], cwd=folder, check=True)
    return (folder / "out").read_text()


def test_python3_in_a_job_has_torch(pool: Pool, work: Path) -> None:
    assert run_job(work, "python3 -c 'import torch; print(torch.ones(2).sum().item())'") == "2.0\n"
