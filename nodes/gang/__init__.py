"""One training over several machines: the agent of each job of a gang.

It is in the same file as the agent of a single job (`nodes/job/`), and uses most of its code.
`trialfleet.workflows.control.gang` describes the generations of a gang.
"""
