"""The program that watches an EC2 node, and shuts it down when it has to leave the pool.

Each second the agent (this program) reads the machine's state (`watch.py`), decides what to do
(`decisions.py`) and does it (`htcondor_tools.py`, `machine.py`). The agent logs why the machine
leaves the pool. It also takes sick GPUs offline, so that no job gets them. For the GPU probe, it
saves readings that only root can take.
"""
