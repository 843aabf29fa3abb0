"""The reference trainer for tables, `trainer: tabular`, which starts in `train.py`.

In a trial's folder these modules are next to `trial.py`; see `trial_imports.py`.
"""

from pathlib import Path

_TRAIN = "train.py"
_OTHERS = {path.name for path in Path(__file__).parent.glob("*.py")} - {_TRAIN, "__init__.py"}
FILES = (_TRAIN, *sorted(_OTHERS))  # the files for a trial; the first one is run
SHARDED = "sharded"  # an additional folder for GPUs and gangs
