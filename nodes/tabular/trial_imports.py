"""The imports of a trial: full names such as `trialfleet.nodes.tabular` for its own folder."""

import sys
from pathlib import Path
from types import ModuleType

for name in ("trialfleet", "trialfleet.nodes", "trialfleet.nodes.tabular"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parent)]
