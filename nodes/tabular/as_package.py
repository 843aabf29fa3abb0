"""Restore this package's module names for the trainer's files, which a trial has in one folder."""

import sys
from pathlib import Path
from types import ModuleType

for name in ("trialfleet", "trialfleet.nodes", "trialfleet.nodes.tabular"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parent)]
