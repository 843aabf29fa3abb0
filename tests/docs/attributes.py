"""docs/reference/attributes.md: every ClassAd attribute that trialfleet writes."""

from __future__ import annotations

from collections.abc import Iterable

from tests.docs.tables import table
from trialfleet.attributes import (
    DAYS,
    HAS_GPU,
    HAS_SIF,
    INSTANCE,
    JOB,
    PROBE,
    TRIAL,
    Attribute,
)

GPU_MACHINES = (
    "In the slots of machines, for `condor_status`. `HAS_GPU` is in every pool that trialfleet "
    "configures. `HasSIF` is on machines with apptainer."
)
PROBED = (
    "In the slots of a fleet's nodes. If trials get several GPUs, each number is that of the "
    "worst of them. Unknown values are undefined."
)


def page() -> str:
    """Return the generated part of the page."""
    sections = (
        ("Jobs", "In the ads of a run's jobs, for `condor_q` and `condor_history`.", JOB),
        (
            "Days of a study",
            "In the job that starts days if systemd does not start them, or that sends alerts.",
            DAYS,
        ),
        (
            "Running trials",
            "In a trial's job, set by the job's agent; HTCondor updates it within about 10 s.",
            (TRIAL,),
        ),
        ("Machines with GPUs, and images", GPU_MACHINES, (HAS_GPU, HAS_SIF)),
        (
            "Nodes of a fleet",
            "In the slots of a fleet's nodes: facts about the EC2 instance.",
            INSTANCE,
        ),
        ("What the probe measured", PROBED, PROBE),
    )
    return "\n\n".join(_section(*section) for section in sections) + "\n"


def _section(title: str, text: str, listed: Iterable[Attribute]) -> str:
    rows = [(f"`{name}`", kind, meaning) for name, kind, meaning in listed]
    return f"## {title}\n\n{text}\n\n{table(['Attribute', 'Type', 'Meaning'], rows)}"
