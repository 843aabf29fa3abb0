"""The programs that run on the pool's machines (nodes): bootstrap, agents, probe, kernels, trainer.

A node may have no packages but Python's standard library. So the code reads /proc instead of using
psutil, `trialfleet.instance_aws` replaces boto3, and metrics are computed without scikit-learn.
Only the kernels and trainers use torch and numpy.
"""

# Files with every trial: modules for its trainer, and its job's first process.
HELPER, AGENT = "trial.py", "agent.pyz"
# The contract's files in a trial's folder; also defined in the helper, which is a single file.
TRIAL, RESULT, PROGRESS, STOP = "trial.json", "result.json", "progress.jsonl", "stop.json"
CHECKPOINT, MODEL = "checkpoint", "model"
# WORDS: the folder for messages between a running job and its access point. WORDS also holds STOP,
# REPORTS in order of arrival, and the folder GANG with messages of gangs.
WORDS, REPORTS, GANG = "words", "reports.jsonl", "gang"
PRINTED = {"out": "printed.out", "err": "printed.err"}  # in WORDS: the trial's output so far
ORDER, SAID = "order.json", "agent.json"  # in WORDS: messages to and from the job's agent
CHECKPOINT_PACKAGE, RESULT_PACKAGE = "{}.checkpoint.tar", "{}.result.tar"  # by the trial's name
GIVEN_PACKAGE = "{}.given.tar"  # input files that did not come with the job
ENDED = "ended.json"  # first file of a result's package: the agent's report of the trial's end
KERNELS = "kernels"  # the reference trainer gets this folder for GPUs and gangs, without:
NOT_ON_NODES = ("__pycache__",)
