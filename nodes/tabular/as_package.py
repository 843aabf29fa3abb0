"""Define the full names by which a trial imports these modules from its own folder."""

import sys
from pathlib import Path
from types import ModuleType

for name in ("trialfleet", "trialfleet.nodes", "trialfleet.nodes.tabular"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parent)]
