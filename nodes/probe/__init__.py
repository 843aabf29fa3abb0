"""The GPU probe: a health check and speed measurement of this machine's GPUs.

`python3 -m trialfleet.nodes.probe` measures, judges and prints attributes for HTCondor's
STARTD_CRON (`--classad`, the default) or all readings and the verdict as JSON (`--json`). It takes
some seconds, at most a minute. `readings.py` defines the readings, `gather.py` takes them (the
driver by `nvidia_smi.py` or `nvml.py`, the kernel's log, speeds by `measure.py`), `models.py` has
the link's capacity, `gpu_health.py` (pure) judges.

`src/trialfleet/attributes.py` (PROBE) explains each attribute. With several GPUs each figure is
that of the worst GPU (the slowest, the hottest) among those that trials get. Unknown attributes are
undefined, never left out.
"""
