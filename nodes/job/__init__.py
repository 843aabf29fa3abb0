"""The agent, first process of a trial's job, which runs the trainer; docs/trial-jobs.md has more.

`archive.py` packs its code into one file, which needs only the standard library.
"""
