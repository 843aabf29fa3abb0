"""The agent, which is the first process of a trial's job and runs the trainer.

docs/trial-jobs.md describes the agent. `archive.py` packs the agent's code into one file, which
needs only the standard library.
"""
