"""One training over several machines: the agent of each job of a gang.

The agent is in the same archive as the agent of a single job (`nodes/job/`), and uses most of that
agent's code. `trialfleet.workflows.control.gang` describes the generations of a gang.
"""
