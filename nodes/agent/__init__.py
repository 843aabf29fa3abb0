"""The node's resident program: it drains and shuts down the node in time, and says why.

Each second the agent reads the node's state (`watch.py`), decides (`decisions.py`, pure) and acts
(`condor.py`, `machine.py`). The agent also takes sick GPUs offline, and saves readings for the
probe that only root can take.
"""
