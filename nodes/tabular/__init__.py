"""The reference trainer, for studies with `trainer: tabular`: it trains a network on a table.

A trial runs `train.py`. The trial's folder has copies of these modules, next to `trial.py`;
`trial_imports.py` makes their imports work there.
"""

from pathlib import Path

_TRAIN = "train.py"
_OTHERS = {path.name for path in Path(__file__).parent.glob("*.py")} - {_TRAIN, "__init__.py"}
FILES = (_TRAIN, *sorted(_OTHERS))  # the files for a trial; the first one is run
SHARDED = "sharded"  # an additional folder for GPUs and gangs
