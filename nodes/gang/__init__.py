"""One training over several machines: the agent that each job of a gang runs.

It travels in the same file as the agent of a job by itself (`nodes/job/`), of which it uses most.
`trialfleet.workflows.control.gang` describes the generations of a gang.
"""
