"""The node's resident program: leaves in time, leaves when nobody needs it, and says why.

Each second it looks (`watch.py`: the instance's metadata, its own startd, the jobs that ended
here), decides (`decisions.py`, pure) and acts (`condor.py`, `machine.py`). It takes GPUs offline
that the probe calls sick, and leaves for the probe what only root can see. It keeps
what it needs after a restart in a file (`saved_state.py`), and finds out all else again.
"""
