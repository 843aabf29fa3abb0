"""The agent of a trial's job: the job's first process, which runs the trainer for trials.

The agent runs from one file (`archive.py`) and needs only the standard library.
`docs/trial-jobs.md` describes its messages to the access point.
"""
