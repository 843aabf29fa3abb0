"""Redirection of imports such as `trialfleet.nodes.tabular` to this folder.

A trial's folder has copies of the modules that it needs, but no package `trialfleet`.
"""

import sys
from pathlib import Path
from types import ModuleType

for name in ("trialfleet", "trialfleet.nodes", "trialfleet.nodes.tabular"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parent)]
