"""What runs on a GPU node: bootstrap, agent, probe, trial helper, kernels, reference trainer.

A node comes with Python, and trials may have torch and numpy: nothing here needs more. So there is
no psutil but /proc, no boto3 but `trialfleet.instance_aws`, no scikit-learn for metrics.
"""

# Go with every trial: what its trainer may import, and its job's first process.
HELPER, AGENT = "trial.py", "agent.pyz"
# The contract's files in a trial's folder; the helper, which travels alone, has them once more.
TRIAL, RESULT, PROGRESS, STOP = "trial.json", "result.json", "progress.jsonl", "stop.json"
CHECKPOINT, MODEL = "checkpoint", "model"
# The folder by which a running job and its access point speak, with STOP for the trial; there: the
# reports as they came, and what gangs say.
WORDS, REPORTS, GANG = "words", "reports.jsonl", "gang"
PRINTED = {"out": "printed.out", "err": "printed.err"}  # there: what the trial prints, as it comes
ORDER, SAID = "order.json", "agent.json"  # there: what the job's agent is told, and says
CHECKPOINT_PACKAGE, RESULT_PACKAGE = "{}.checkpoint.tar", "{}.result.tar"  # of a trial by its name
GIVEN_PACKAGE = "{}.given.tar"  # what its job didn't come with
ENDED = "ended.json"  # begins a result's package: how the trial ended, by its agent
KERNELS = "kernels"  # a folder that goes with the reference trainer to GPUs and gangs, but for
NOT_ON_NODES = ("__pycache__",)
