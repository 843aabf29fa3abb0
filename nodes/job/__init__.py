"""The agent, first process of a trial's job, which runs the trainer; docs/trial-jobs.md has more.

It is one file (`archive.py`) and needs only the standard library.
"""
