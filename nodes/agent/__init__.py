"""The node's resident program: it drains and shuts down the node in time, and says why.

Each second it reads the state (`watch.py`: the instance's metadata, its own startd, the jobs that
ended here), decides (`decisions.py`, pure) and acts (`condor.py`, `machine.py`). It takes GPUs
offline if the probe calls them sick. It saves readings that only root can take, for the probe. A
file (`saved_state.py`) holds the agent's state for a restart.
"""
