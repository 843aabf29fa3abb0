"""One training over several machines: the agent of each job of a gang.

`trialfleet.workflows.control.gang` describes a gang's generations. `nodes/job/` has shared code.
"""
