"""trialfleet, in a new pool with a slot for each lane (parallel trial)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.peers.systems.arguments import read_arguments, write_results
from tests.bench.peers.workload import LANES, LEDGER, METRIC, REGIONS, SPACE, data_of
from tests.pool_settings import configured_pool
from trialfleet import Run, Study, plan
from trialfleet.infra.pool.connection import use

# It stays: a lane's trials are trained by one process, as the guide for trainers says.
_TRAINER = """\
import json
import sys
from pathlib import Path

import trial

sys.path.insert(0, {clone!r})
from tests.bench.peers.workload import METRIC, recorded


def train(t):
    number = json.loads(Path("trial.json").read_text())["trial"]
    value = recorded(Path({ledger!r}), t.region, str(number), Path.cwd())
    t.complete(**{{METRIC: value}})


trial.run(train)
"""


def main() -> None:
    """Start the pool, submit the run unless that is done, and wait."""
    given = read_arguments()
    pool = configured_pool(given.folder / "pool", cpus=LANES)
    pool.up(seconds=180)
    use(pool.environment())
    run = (
        Run(given.folder / "run")
        if (given.folder / "run").is_dir()
        else submitted(given.folder, given.trials)
    )
    run.wait()
    values = {
        region: [t.value for t in run.trials(region) if t.value is not None] for region in REGIONS
    }
    write_results(given.folder, values)
    pool.down(grace=5)


def submitted(folder: Path, trials: int) -> Run:
    """Plan the study and submit it."""
    text = _TRAINER.format(clone=str(Path(__file__).parents[4]), ledger=str(folder / LEDGER))
    (folder / "train.py").write_text(text)
    study = Study.model_validate(
        {
            "name": "peers",
            "regions": list(REGIONS),
            "data": str(data_of("{region}")),
            "objective": {"metric": METRIC, "direction": "maximize"},
            "search_space": {**SPACE, "epochs": 2},
            "budget": {"trials": trials, "lanes": LANES},
            "trainer": {"command": ["python3", "train.py"], "files": ["train.py"]},
            "python": sys.executable,
            "resources": {"cpus": 1, "memory": "1GB", "disk": "256MB"},
            "accelerator": "cpu",
            "publish": "none",
            "seed": 1,
        }
    ).resolve(folder)
    run = plan(study, run="peers", out=folder / "run")
    run.submit()
    return run


if __name__ == "__main__":
    main()
