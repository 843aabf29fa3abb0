"""The node's resident program: leaves in time, leaves when nobody needs it, and says why.

Each second it looks (`watch.py`: the instance's metadata, its own startd, the jobs that ended
here), decides (`decisions.py`, pure) and acts (`condor.py`, `machine.py`). It takes GPUs offline
that the probe calls sick, and leaves for the probe what only root can see. What it must not forget
when it is restarted lies in `saved_state.py`'s file; all else it sees again.
"""
