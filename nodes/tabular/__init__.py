"""The reference trainer for tables, `trainer: tabular`; `train.py` is where it begins.

In a trial's folder its files lie flat beside `trial.py`: `as_package.py` gives them their names.
"""

from pathlib import Path

_TRAIN = "train.py"
_OTHERS = {path.name for path in Path(__file__).parent.glob("*.py")} - {_TRAIN, "__init__.py"}
FILES = (_TRAIN, *sorted(_OTHERS))  # what goes with a trial; the first one runs
SHARDED = "sharded"  # a folder that goes with it to GPUs and gangs
