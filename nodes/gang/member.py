"""The state that the agent of a gang's job writes to the access point.

The state changes every 3 s, for days. So the agent writes it to a file. In the job's ClassAd, each
change would add an event to the job's event log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

# Phases of an agent.
WAITING = "waiting"  # for a generation that includes it
READY = "ready"  # for the generation that is being formed
RUNNING = "running"  # its workers train
SAVED = "saved"  # its worker exited with 85: the checkpoint is saved, restart the worker
FINISHED = "finished"  # its workers exited with 0; rank 0's result is delivered
FAILED = "failed"  # a worker exited with another code
LEAVING = "leaving"  # its machine is being vacated


@dataclass(frozen=True)
class Member:
    """The last reported state of an agent."""

    token: str  # identifies this process among all executions of the job
    began: int  # the job's JobCurrentStartDate, which tells reports of previous executions apart
    host: str  # its address for the others
    port: int  # a port that was free when it got ready; rank 0's port becomes MASTER_PORT
    phase: str  # its present phase
    generation: int  # the generation of this phase
    busy: int = 0  # 1 while a worker lives, or its files are being sent to the access point
    code: int = 0  # exit code of the worker that failed; minus the signal's number
    ended: float = 0.0  # when it failed, in Unix seconds
    over: str = ""  # the limit for which this agent ended the trial: memory, time or disk
    changed: int = 0  # 1 if a trial has changed a file that came with the job
    door: int = 0  # the port for probes by the other agents
    lost: str = ""  # tokens of the lower ranks that it can't reach, separated by commas
    cpu: float = 0.0  # processor seconds of the present trial here so far
    memory: float = 0.0  # the largest total memory of its processes, in MB
    beat: int = 0  # heartbeat: grows while nothing else changes

    def to_text(self) -> str:
        """Return the state as JSON."""
        return json.dumps(asdict(self))


def state_file_name(proc: int) -> str:
    """Return the name of the file with the state of a job's agent.

    `proc` is the second number of the job's id, such as 3 of job 12.3.
    """
    return f"agent.{proc}"
