"""Gives the trainer's files, which lie flat in a trial's folder, the names that they have here.

Whoever imports this first imports `trialfleet.nodes.trial` from `trial.py` beside it, and so on.
"""

import sys
from pathlib import Path
from types import ModuleType

for name in ("trialfleet", "trialfleet.nodes", "trialfleet.nodes.tabular"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parent)]
