"""A study of many lanes whose trainer sleeps and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trialfleet import Study

# The first trials wait until all jobs run; then each sleeps for `nap` seconds.
_TRAINER = """\
#!/bin/sh
nap=$(sed -n 's/.*"nap": *\\([0-9.]*\\).*/\\1/p' trial.json)
while [ ! -e '{go}' ]; do sleep 2; done
echo '{{"step": 1, "metrics": {{"loss": 1.5}}}}' >> progress.jsonl
sleep "$nap"
echo '{{"schema": 1, "status": "complete", "metrics": {{"loss": 1.'$$'}}}}' > result.json
"""


def lanes_study(
    base: Path,
    regions: int,
    lanes: int,
    *,
    trials: int,
    has_model: bool,
    nap: tuple[float, float] = (60.0, 180.0),
    per_job: Literal["all"] | int = "all",
) -> Study:
    """Return a study whose trials sleep.

    Args:
        base: where its trainer is written; the trials begin once the file `go` is there.
        regions: number of them.
        lanes: of each region.
        trials: of each region.
        has_model: whether the model proposes after the start-up trials, as in any study; else all
            are start-up trials, whose choice takes almost no time.
        nap: the least and the most seconds of a trial.
        per_job: the budget's `trials_per_job`.
    """
    base.mkdir(parents=True, exist_ok=True)
    (base / "go.sh").write_text(_TRAINER.format(go=base / "go"))
    space = {f"x{i}": {"type": "float", "low": 0.0, "high": 1.0} for i in range(6)}
    low, high = nap
    budget: dict[str, object] = {"trials": trials, "lanes": lanes, "trials_per_job": per_job}
    if not has_model:
        budget["startup_trials"] = trials
    return Study.model_validate(
        {
            "name": "lanes",
            "regions": [f"R{i:02}" for i in range(regions)],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {**space, "nap": {"type": "float", "low": low, "high": high}},
            "budget": {**budget, "job_minutes": 100_000.0},
            "trainer": {"command": ["sh", "go.sh"], "files": ["go.sh"]},
            "resources": {"cpus": 1, "memory": "64MB", "disk": "1MB"},
            "accelerator": "cpu",
            "publish": "none",
        }
    ).resolve(base)
