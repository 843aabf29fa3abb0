"""The program that watches an EC2 node, and shuts it down when it has to leave the pool.

Each second the agent (this program) reads the machine's state, decides what to do and does it.
`watch.py` has this loop, and `decisions.py` has the rules. The agent also takes sick GPUs offline,
so that no job gets them. For the GPU probe, it saves readings that only root can take.
"""
