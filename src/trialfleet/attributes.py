"""All attributes that trialfleet writes into the ClassAds of jobs and machines.

Templates, queries and the programs of nodes use these names. `docs/reference/attributes.md` is
generated from this table.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Attribute(NamedTuple):
    """A ClassAd attribute. `kind` is its type, such as `text` or `number in KiB`."""

    name: str
    kind: str
    meaning: str


def _table(text: str) -> tuple[Attribute, ...]:
    """Return the attributes in a text: lines `NAME: KIND`, each above lines with the meaning."""
    blocks = (block.split(maxsplit=1) for block in re.split(r"\n(?=\S)", text.strip()))
    return tuple(
        Attribute(name[:-1], *(" ".join(part.split()) for part in rest.split("\n", maxsplit=1)))
        for name, rest in blocks
    )


# Of jobs: the submit files and DAGs of a run set these, so `condor_q` can find a run's jobs.
JOB = _table("""
TrialfleetRun: text
    Id of the run that the job belongs to.
TrialfleetFolder: text
    The run's folder, an absolute path. Every job of a run has it, including its DAGMan jobs.
TrialfleetRegion: text
    Name of the region's folder under `regions/`; missing in jobs of the whole run.
TrialfleetNode: text
    The node of the region's DAG that the job runs: a lane, trials of a lane, the full training, the
    gate or the publication.
TrialfleetMode: text
    `tune` for trials, `final` for the full training of a region's best settings in a separate job,
    `evaluate` for the gate.
TrialfleetGangMin: number
    Of a gang's job: the number of jobs that the gang needs to train.
TrialfleetGangMax: number
    Of a gang's job: the number of the gang's jobs that the DAG node submitted.
TrialfleetTeam: text
    The study's `team`, in jobs that train or measure models; missing without one.
TrialfleetMemoryKb: number in KiB
    Memory that the trial uses. Memory that several of its processes share counts once if HTCondor
    measures shared memory.
TrialfleetOwnCopy: boolean
    Of a job whose region has more than 10 MB of files: true if HTCondor sends them with this job,
    false if it sends them to the machine once, for all jobs of the region.
CommonInputFiles: text
    An attribute of HTCondor: the files that it sends to a machine once, for all jobs of the region.
TransferInput: text
    An attribute of HTCondor: the files that it sends with this job.
DiskUsage: number in KiB
    An attribute of HTCondor: the disk that the job uses, including its copy of the region's files.
LimitDirectoryAccess: text
    An attribute of HTCondor: the files on the access point that a job may access: the folder
    `words/` of its DAG node, and each file that HTCondor transfers to or from the job.
WantRemoteUpdates: boolean
    An attribute of HTCondor: false in each job that has `LimitDirectoryAccess`, so that the job can
    only change attributes of its ad that begin with `Chirp`.
""")

# Of two jobs of a study: one starts its daily runs where systemd does not, one sends their alerts.
DAYS = _table("""
TrialfleetDaily: text
    Of the job that starts a study's daily runs: the folder of these runs.
TrialfleetDailyText: text
    Of the same job: the text from which it was made. If the text has changed, `trialfleet daily
    install` replaces the job.
TrialfleetAlerts: text
    Of the job that sends alerts about a study's daily runs: the folder of these runs.
""")

# Of running jobs: the job's agent sets this attribute by HTCondor's chirp.
TRIAL = Attribute("ChirpTrialfleetTrial", "text", "The name of the trial that the job runs now.")

# Of machines that are nodes of a fleet: their configuration sets them (node.conf.j2 and the node's
# bootstrap). HAS_GPU and HasSIF are also set in other pools that trialfleet configures.
HAS_GPU, HAS_SIF = _table("""
HAS_GPU: boolean
    Jobs can get a GPU here. On a node of a fleet, every GPU that jobs can get has passed the GPU
    probe.
HasSIF: boolean
    Jobs with a `.sif` file as their image can run here; an attribute of HTCondor.
""")
INSTANCE = _table("""
TrialfleetFleet: text
    Name of the fleet.
TrialfleetInstance: text
    The EC2 instance, such as `i-0123456789abcdef0`.
TrialfleetInstanceType: text
    Type of the instance, such as `g5.xlarge`.
TrialfleetZone: text
    Availability zone, such as `eu-west-1a`.
TrialfleetLifecycle: text
    `spot` or `on-demand`.
TrialfleetPricePerHour: number in USD/h
    Price of the instance when it was requested. Your own machines may advertise a price, too: the
    cost of their jobs is calculated from it.
TrialfleetDriverOption: text
    Result of setting the driver's option `NVreg_CheckPCIConfigSpace`: `set`, `already 0`, `still 1:
    reboot needed`, `driver no longer checks` or `no driver`.
TrialfleetTrialsPerGpu: number
    Number of trials that share each GPU. `GPUs` and `TotalGPUs` count every GPU that many times.
TrialfleetBandwidthPerDollar: number in GB/s per USD/h
    Measured bandwidth of all GPUs that trials can get, divided by the node's price; 0 if either is
    unknown. GPU trials prefer the highest value, unless the study has a `rank`.
TrialfleetNote: text
    Why the node accepts no more jobs; empty while it accepts them.
""")

# Of machines that are nodes of a fleet: the probe measures them (nodes/probe/classad.py).
PROBE = _table("""
TrialfleetGpuHealthy: boolean
    At least one GPU passed the probe, and the machine as a whole has no fault. False on a machine
    without a GPU.
TrialfleetGpuReason: text
    Faults of the machine or of some of its GPUs; empty if there are none.
TrialfleetSickGpus: text
    The GPUs that failed the probe, by HTCondor's names, separated by commas, such as
    `GPU-5135b1cf`. Trials get the others.
TrialfleetGpuName: text
    Name of the GPUs, such as `NVIDIA A10G`.
TrialfleetGpuDriver: text
    Version of the driver.
TrialfleetGpuCuda: text
    The newest version of CUDA that the driver supports, such as `12.4`.
TrialfleetBandwidth: number in GB/s (10^9 bytes)
    Bytes read plus bytes written by a copy within a GPU's memory.
TrialfleetBandwidthShare: number from 0 to 1
    `TrialfleetBandwidth`, divided by the value in the GPU's data sheet.
TrialfleetLaunchMicroseconds: number in µs
    Median time from the launch of a small kernel until the host knows that it is done.
TrialfleetLaunchRate: number per second
    Small kernels per second, launched one directly after another.
TrialfleetHostBandwidth: number in GB/s
    Bandwidth from the host's pinned memory to a GPU.
TrialfleetGpuWatts: number in W
    Power drawn before the measurement.
TrialfleetGpuWattsLimit: number in W
    The maximum power that a GPU may draw.
TrialfleetGpuCelsius: number in °C
    Temperature of the GPU.
TrialfleetPcieGeneration: number
    PCIe generation of the link to the host during the probe; an idle GPU may slow its link down.
TrialfleetPcieGenerationMax: number
    Maximum generation of that link.
TrialfleetPcieWidth: number of lanes
    Width of that link.
TrialfleetPcieWidthMax: number of lanes
    Maximum width of that link.
TrialfleetKernels: boolean
    trialfleet's CUDA kernels are built here and can be loaded.
TrialfleetGpuNote: text
    Why something was not measured; empty if everything was.
""")

ALL = (*JOB, *DAYS, TRIAL, HAS_GPU, HAS_SIF, *INSTANCE, *PROBE)
