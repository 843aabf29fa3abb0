"""The built-in trainer (`trainer: tabular`), which trains a neural network on a table.

A trial runs `train.py` in a folder that has copies of these modules and of `trial.py`. There
`trial_imports.py` makes the modules' imports work.
"""

from pathlib import Path

_TRAIN = "train.py"
_OTHERS = {path.name for path in Path(__file__).parent.glob("*.py")} - {_TRAIN, "__init__.py"}
FILES = (_TRAIN, *sorted(_OTHERS))  # the files for a trial; the first one is run
SHARDED = "sharded"  # an additional folder for GPUs and gangs
