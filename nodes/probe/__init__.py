"""The GPU probe: is this machine's GPU fit to train on, how fast is it, and if not, why.

`python3 -m trialfleet.nodes.probe` measures, judges and prints attributes for HTCondor's
STARTD_CRON (`--classad`, the default) or all readings and the verdict as JSON (`--json`), within
10 seconds. `readings.py` says what is read, `verdict.py` (pure) judges it, `gather.py` reads.

attribute                      type     meaning
TrialfleetGpuHealthy           boolean  every GPU passed; False without a GPU
TrialfleetGpuReason            string   what is wrong, "" when healthy
TrialfleetGpuName              string   the GPUs' name, such as "NVIDIA A10G"
TrialfleetGpuDriver            string   version of the driver
TrialfleetBandwidth            real     GB/s (10^9 bytes): bytes read plus bytes written by a copy
                                        within a GPU's memory; the slowest GPU's
TrialfleetLaunchMicroseconds   real     from the launch of a small kernel to knowing that it is
                                        done, median; the slowest GPU's
TrialfleetGpuNote              string   why something was not measured, "" when all was

What is not known is undefined, never left out.
"""
