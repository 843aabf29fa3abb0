"""The first process of a trial's job, which is `__main__` in the archive `agent.pyz`.

python3 -I -S agent.pyz -- COMMAND…           trains trials, alone or as a member of a gang
python3 -I -S agent.pyz --ranks -- COMMAND…   the same; outside of a gang, sets RANK=0, WORLD_SIZE=1
python3 agent.pyz workers …                   starts a gang's workers (training processes)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

GANG = "TRIALFLEET_GANG"  # in the environment of a gang's job: its id, such as 12.0


def main() -> None:
    """Run the job's agent or the server of a gang's workers, as the arguments say."""
    words, job = sys.argv[1:], os.environ.get(GANG)
    live: Callable[[], None]
    if words[0] == "workers":
        from trialfleet.nodes.gang import workers

        live = partial(workers.main, words[1:])
    elif job:
        from trialfleet.nodes.gang import agent as gang

        live = partial(gang.main, job, words[words.index("--") + 1 :])
    else:
        from trialfleet.nodes.job import agent

        if words[0] == "--ranks":
            from trialfleet.nodes.gang import network

            os.environ.update(network.world_of_one())
        live = partial(agent.main, words[words.index("--") + 1 :])
    sys.path.pop(0)  # this archive, which the trainer may change: import nothing more from it
    live()


if __name__ == "__main__":
    main()
