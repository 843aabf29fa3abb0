"""The GPU probe: a health check and speed measurement of this machine's GPUs.

`gather.py` takes the readings, `gpu_health.py` judges them, and `classad.py` writes attributes for
STARTD_CRON, by which HTCondor runs the probe. `src/trialfleet/attributes.py` (PROBE) explains each
attribute. With several GPUs an attribute has the worst value (of the slowest or the hottest GPU)
among the GPUs that trials get.
"""
