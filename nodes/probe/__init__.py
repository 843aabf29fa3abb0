"""The GPU probe: are this machine's GPUs fit to train on, how fast are they, if not, why.

`python3 -m trialfleet.nodes.probe` measures, judges and prints attributes for HTCondor's
STARTD_CRON (`--classad`, the default) or all readings and the verdict as JSON (`--json`): in some
seconds, a minute at most. `readings.py` says what is read, `gather.py` reads it (the driver by
`nvidia_smi.py` or `nvml.py`, the kernel's log, speeds by `measure.py`), `models.py` has what a GPU
should reach, `verdict.py` (pure) judges.

attribute                      type     meaning
TrialfleetGpuHealthy           boolean  some GPU passed, and nothing is wrong with the machine as a
                                        whole; False without a GPU
TrialfleetGpuReason            string   what is wrong with the machine or with some of its GPUs;
                                        "" when nothing is
TrialfleetSickGpus             string   the GPUs that didn't pass, by HTCondor's names, with commas
                                        between: "GPU-5135b1cf"; trials get the others
TrialfleetGpuName              string   the GPUs' name, such as "NVIDIA A10G"
TrialfleetGpuDriver            string   version of the driver
TrialfleetGpuCuda              string   the newest CUDA that the driver can run, such as "12.4"
TrialfleetBandwidth            real     GB/s (10^9 bytes): bytes read plus bytes written by a copy
                                        within a GPU's memory
TrialfleetBandwidthShare       real     that, as a part of the data sheet's bandwidth
TrialfleetLaunchMicroseconds   real     from the launch of a small kernel to knowing that it is
                                        done, median
TrialfleetLaunchRate           real     small kernels per second, launched one right after the other
TrialfleetHostBandwidth        real     GB/s from the host's pinned memory to a GPU
TrialfleetGpuWatts             real     power drawn when the probe looked, before it measured
TrialfleetGpuWattsLimit        real     power that a GPU may draw, in watts
TrialfleetGpuCelsius           real     temperature
TrialfleetPcieGeneration       integer  of the link to the host when the probe looked (an idle GPU
                                        may slow it down)
TrialfleetPcieGenerationMax    integer  what the link can do
TrialfleetPcieWidth            integer  lanes of the link
TrialfleetPcieWidthMax         integer  lanes, at most
TrialfleetKernels              boolean  trialfleet's CUDA kernels are built here, and load
TrialfleetGpuNote              string   why something was not measured, "" when all was

Of several GPUs each figure is the worst one's: the slowest, the hottest; of those that trials get.
What is not known is undefined, never left out.
"""
