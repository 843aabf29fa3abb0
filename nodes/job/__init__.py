"""The agent, which is the first process of a trial's job and runs the trainer.

docs/trial-jobs.md describes it. `archive.py` packs its code into one file, which needs only the
standard library.
"""
