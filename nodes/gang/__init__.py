"""One training over several machines: the agent that each job of a gang runs.

It travels as a folder with `chirp.py` beside it, and needs the standard library alone. How a gang
lives is told in `trialfleet.workflows.gang`.
"""

FOLDER = "gang"  # in a sandbox; and, on the access point, in the trial's folder
FILES = (
    "__init__.py",
    "agent.py",
    "member.py",
    "network.py",
    "packages.py",
    "workers.py",
)  # that travel
