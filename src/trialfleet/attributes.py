"""Every ClassAd attribute that trialfleet writes into the ads of jobs and of machines.

Templates, queries and nodes use these names. `docs/reference/attributes.md` is made from this
table, and `tests/unit/project/test_attributes.py` fails when a name that they use is missing in it.
"""

from __future__ import annotations

from typing import NamedTuple


class Attribute(NamedTuple):
    """One attribute.

    Attributes:
        name: as `condor_q -af` and `condor_status -af` take it.
        kind: `text`, `boolean` or `number`, followed by the unit of a number that has one.
        meaning: what its value says, in one or two sentences.
    """

    name: str
    kind: str
    meaning: str


# Of jobs: the submit files and DAGs of a run set them, so `condor_q` finds a run's jobs by them.
JOB = (
    Attribute("TrialfleetRun", "text", "Id of the run that the job belongs to."),
    Attribute(
        "TrialfleetFolder",
        "text",
        "The run's folder, an absolute path. Every job of a run has it, its DAGMan jobs too.",
    ),
    Attribute(
        "TrialfleetRegion",
        "text",
        "The region, by the name of its folder under `regions/`. Jobs of the whole run have none.",
    ),
    Attribute(
        "TrialfleetNode",
        "text",
        "The node of the region's DAG that the job runs: a lane, or one or some of its trials; the "
        "full training, the gate or the publication.",
    ),
    Attribute(
        "TrialfleetMode",
        "text",
        "`tune` for trials, `final` for the full training of a region's best settings in a job of "
        "its own, `evaluate` for the gate.",
    ),
    Attribute(
        "TrialfleetGangMin", "number", "Of a gang's job: with how many such jobs it can train."
    ),
    Attribute(
        "TrialfleetGangMax", "number", "Of a gang's job: how many of them the node submitted."
    ),
    Attribute("TrialfleetTeam", "text", "The study's `team`, where it has one."),
    Attribute(
        "TrialfleetMemoryKb",
        "number in KiB",
        "Memory that the trial uses. Memory that its processes share counts once where HTCondor "
        "measures that.",
    ),
    Attribute(
        "TrialfleetOwnCopy",
        "boolean",
        "HTCondor sends the region's files with this job. Else it sends them to the machine once, "
        "for all jobs of the region.",
    ),
    Attribute(
        "CommonInputFiles",
        "text",
        "HTCondor's own: the files that it sends to a machine once, for all jobs of the region.",
    ),
    Attribute("TransferInput", "text", "HTCondor's own: the files that it sends with this job."),
    Attribute(
        "DiskUsage",
        "number in KiB",
        "HTCondor's own: the disk that the job uses, with its own copy of the region's files.",
    ),
    Attribute(
        "LimitDirectoryAccess",
        "text",
        "HTCondor's own: what a job may reach on the access point: the folder `words/` of its "
        "node, and each file that HTCondor sends to the job or brings back.",
    ),
    Attribute(
        "WantRemoteUpdates",
        "boolean",
        "HTCondor's own: false in each job that has `LimitDirectoryAccess`, so that it can't "
        "change its own ad, but for attributes that begin with `Chirp`.",
    ),
)

# Of a study's days: the job that starts them where systemd does not, and the one that sends alerts.
DAYS = (
    Attribute("TrialfleetDaily", "text", "The folder of the study's runs: whose clock it is."),
    Attribute(
        "TrialfleetDailyText",
        "text",
        "What it was made of: where that has changed, `trialfleet daily install` replaces the job.",
    ),
    Attribute(
        "TrialfleetAlerts", "text", "The folder of the study's runs: whose days' alerts it sends."
    ),
)

# Of running jobs: the job's agent sets it, by HTCondor's chirp.
TRIAL = Attribute("ChirpTrialfleetTrial", "text", "The trial that the job is at, by its name.")

# Of machines that are nodes of a fleet: their configuration sets them (node.conf.j2 and the node's
# bootstrap). HAS_GPU and HasSIF are in those of other pools of ours, too.
HAS_GPU = Attribute(
    "HAS_GPU",
    "boolean",
    "Jobs get a GPU here. On a node of a fleet: and every GPU that jobs get has passed the probe.",
)
OLD_HAS_GPU = Attribute("SLOT1_HAS_GPU", "boolean", "The same, as older submit files ask for it.")
HAS_SIF = Attribute(
    "HasSIF",
    "boolean",
    "Jobs with a `.sif` file as their image run here; HTCondor's own name.",
)
INSTANCE = (
    Attribute("TrialfleetFleet", "text", "Name of the fleet."),
    Attribute("TrialfleetInstance", "text", "The EC2 instance, such as `i-0123456789abcdef0`."),
    Attribute("TrialfleetInstanceType", "text", "Its type, such as `g5.xlarge`."),
    Attribute("TrialfleetZone", "text", "Its availability zone, such as `eu-west-1a`."),
    Attribute("TrialfleetLifecycle", "text", "`spot` or `on-demand`."),
    Attribute(
        "TrialfleetPricePerHour",
        "number in USD/h",
        "Price of the instance when it was asked for. A machine of your own may advertise one, "
        "too: what its jobs cost is reckoned by it.",
    ),
    Attribute(
        "TrialfleetDriverOption",
        "text",
        "What became of the driver's option `NVreg_CheckPCIConfigSpace`: `set`, `already 0`, "
        "`still 1: reboot needed`, `driver no longer checks` or `no driver`.",
    ),
    Attribute(
        "TrialfleetTrialsPerGpu",
        "number",
        "Trials that share each GPU. `GPUs` and `TotalGPUs` count every GPU so many times.",
    ),
    Attribute(
        "TrialfleetBandwidthPerDollar",
        "number in GB/s per USD/h",
        "Measured bandwidth of all GPUs that trials get, divided by the node's price; 0 if either "
        "is unknown. GPU trials go where it is highest, unless the study has a `rank`.",
    ),
    Attribute("TrialfleetNote", "text", "Why the node takes no more jobs; empty while it does."),
)

# Of machines that are nodes of a fleet: the probe measures them (nodes/probe/classad.py).
PROBE = (
    Attribute(
        "TrialfleetGpuHealthy",
        "boolean",
        "At least one GPU passed the probe, and nothing is wrong with the machine as a whole. "
        "False on a machine without a GPU.",
    ),
    Attribute(
        "TrialfleetGpuReason",
        "text",
        "What is wrong with the machine or with some of its GPUs; empty when nothing is.",
    ),
    Attribute(
        "TrialfleetSickGpus",
        "text",
        "The GPUs that did not pass, by HTCondor's names with commas between, such as "
        "`GPU-5135b1cf`. Trials get the others.",
    ),
    Attribute("TrialfleetGpuName", "text", "Name of the GPUs, such as `NVIDIA A10G`."),
    Attribute("TrialfleetGpuDriver", "text", "Version of the driver."),
    Attribute("TrialfleetGpuCuda", "text", "The newest CUDA that the driver runs, such as `12.4`."),
    Attribute(
        "TrialfleetBandwidth",
        "number in GB/s (10^9 bytes)",
        "Bytes read plus bytes written by a copy within a GPU's memory.",
    ),
    Attribute(
        "TrialfleetBandwidthShare",
        "number from 0 to 1",
        "That bandwidth, as a part of what the GPU's data sheet gives.",
    ),
    Attribute(
        "TrialfleetLaunchMicroseconds",
        "number in µs",
        "Median time from the launch of a small kernel to knowing that it is done.",
    ),
    Attribute(
        "TrialfleetLaunchRate",
        "number per second",
        "Small kernels per second, launched one right after the other.",
    ),
    Attribute(
        "TrialfleetHostBandwidth",
        "number in GB/s",
        "From the host's pinned memory to a GPU.",
    ),
    Attribute("TrialfleetGpuWatts", "number in W", "Power drawn before the measurement."),
    Attribute("TrialfleetGpuWattsLimit", "number in W", "The most power that a GPU may draw."),
    Attribute("TrialfleetGpuCelsius", "number in °C", "Temperature."),
    Attribute(
        "TrialfleetPcieGeneration",
        "number",
        "PCIe generation of the link to the host when the probe looked; an idle GPU may slow its "
        "link down.",
    ),
    Attribute("TrialfleetPcieGenerationMax", "number", "The generation that the link can reach."),
    Attribute("TrialfleetPcieWidth", "number of lanes", "Width of that link."),
    Attribute("TrialfleetPcieWidthMax", "number of lanes", "The width that it can have."),
    Attribute(
        "TrialfleetKernels", "boolean", "trialfleet's CUDA kernels are built here, and load."
    ),
    Attribute("TrialfleetGpuNote", "text", "Why something was not measured; empty when all was."),
)

ALL = (*JOB, *DAYS, TRIAL, HAS_GPU, OLD_HAS_GPU, HAS_SIF, *INSTANCE, *PROBE)
