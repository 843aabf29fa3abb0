"""The node's resident program: it drains and shuts down the node in time, and says why.

Each second it reads the state (`watch.py`: the instance's metadata, its own startd, the jobs that
ended here), decides (`decisions.py`, pure) and acts (`condor.py`, `machine.py`). It takes GPUs
offline that the probe calls sick, and saves readings for the probe that only root can take. A file
(`saved_state.py`) holds its state for a restart.
"""
