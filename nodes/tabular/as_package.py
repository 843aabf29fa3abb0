"""Lets a trial import this package's modules by their names, from the one folder of its files."""

import sys
from pathlib import Path
from types import ModuleType

for name in ("trialfleet", "trialfleet.nodes", "trialfleet.nodes.tabular"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parent)]
