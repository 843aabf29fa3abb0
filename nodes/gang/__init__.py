"""One training over several machines: the agent that each job of a gang runs.

It travels in the same file as the agent of a job by itself (`nodes/job/`), of which it uses most.
How a gang lives is told in `trialfleet.workflows.control.gang`.
"""
