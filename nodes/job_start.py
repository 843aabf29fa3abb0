"""The first process of a trial's job, which is `__main__` in the archive `agent.pyz`.

python3 -I -S agent.pyz -- COMMAND…           trains trials, alone or as a member of a gang
python3 -I -S agent.pyz --ranks -- COMMAND…   the same; outside of a gang, sets RANK=0, WORLD_SIZE=1
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

GANG = "TRIALFLEET_GANG"  # in the environment of a gang's job: its id, such as 12.0


def main() -> None:
    """Run the job's agent."""
    words, job = sys.argv[1:], os.environ.get(GANG)
    command = words[words.index("--") + 1 :]
    live: Callable[[], None]
    if job:
        from trialfleet.nodes.gang import agent as gang

        live = partial(gang.main, job, command)
    else:
        from trialfleet.nodes.job import agent

        if words[0] == "--ranks":
            from trialfleet.nodes.gang import network

            os.environ.update(network.world_of_one())
        live = partial(agent.main, command)
    sys.path.pop(0)  # this archive, which the trainer may change: import nothing more from it
    live()


if __name__ == "__main__":
    main()
