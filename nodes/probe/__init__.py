"""The GPU probe, which checks the health and measures the speed of this machine's GPUs.

HTCondor's daemon on the node (the startd) runs the probe at intervals (STARTD_CRON). `gather.py`
takes the readings, `gpu_health.py` judges them, and `classad.py` writes the ClassAd attributes that
HTCondor then publishes. `src/trialfleet/attributes.py` (PROBE) explains each attribute. If the
machine has several GPUs, an attribute has the worst value, for example the highest temperature.
"""
