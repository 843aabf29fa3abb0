"""One training over several machines: the agent that each job of a gang runs.

It travels as a folder with `chirp.py` beside it, and needs the standard library alone. How a gang
lives is told in `trialfleet.workflows.gang`.
"""
