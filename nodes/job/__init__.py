"""What runs in a trial's job: the agent, the job's first process, which has trials trained.

It travels as one file (`archive.py`), needs the standard library alone, and is told in
`docs/trial-jobs.md`: what it says to its access point, and how it lives.
"""
