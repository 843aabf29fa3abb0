"""Makes imports such as `trialfleet.nodes.tabular` work in a trial's folder.

The folder has copies of the modules that a trial needs, but no package `trialfleet`.
"""

import sys
from pathlib import Path
from types import ModuleType

for name in ("trialfleet", "trialfleet.nodes", "trialfleet.nodes.tabular"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parent)]
