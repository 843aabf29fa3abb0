"""The agent, the first process of a trial's job; it runs the trainer (see docs/trial-jobs.md).

`archive.py` packs the agent's code into one file, which needs only the standard library.
"""
