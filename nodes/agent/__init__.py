"""The node's resident program: leaves in time, leaves when nobody needs it, and says why.

Every two seconds it looks (`watch.py`: the instance's metadata, its own startd, the jobs that ended
here), decides (`decisions.py`, pure) and acts (`condor.py`, `machine.py`). What it must not forget
when it is restarted lies in `memory.py`'s file; all else it sees again.
"""
