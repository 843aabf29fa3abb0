"""The programs that run on the pool's machines (nodes): bootstrap, agents, probe, kernels, trainer.

Some nodes have no Python packages besides the standard library. So the code reads /proc instead of
using psutil, `trialfleet.instance_aws` replaces boto3, and metrics are computed without
scikit-learn. Only the kernels, the trainers and the GPU probe use torch or numpy.
"""

# Files that every trial gets: the module `trial` for its trainer, and the job's agent.
HELPER, AGENT = "trial.py", "agent.pyz"
# Files in a trial's folder for and by the trainer. trial.py, a single file, defines them again.
TRIAL, RESULT, PROGRESS, STOP = "trial.json", "result.json", "progress.jsonl", "stop.json"
CHECKPOINT, MODEL = "checkpoint", "model"
# WORDS: the folder for messages between a running job and its access point. In it are also the
# files STOP and REPORTS (lines in order of arrival), and the folder GANG with messages of gangs.
WORDS, REPORTS, GANG = "words", "reports.jsonl", "gang"
PRINTED = {"out": "printed.out", "err": "printed.err"}  # in WORDS: the trial's output so far
ORDER, SAID = "order.json", "agent.json"  # in WORDS: messages to and from the job's agent
CHECKPOINT_PACKAGE, RESULT_PACKAGE = "{}.checkpoint.tar", "{}.result.tar"  # by the trial's name
GIVEN_PACKAGE = "{}.given.tar"  # input files that did not come with the job
ENDED = "ended.json"  # first file of a result's package: the agent's report of the trial's end
KERNELS = "kernels"  # the built-in trainer gets this folder for GPUs and in gangs
NOT_ON_NODES = ("__pycache__",)  # names in that folder that are not sent
