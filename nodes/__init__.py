"""What runs on a GPU node: bootstrap, agent, probe, trial helper, kernels, reference trainer.

A node comes with Python, and trials may have torch and numpy: nothing here needs more. So there is
no psutil but /proc, no boto3 but `trialfleet.instance_aws`, no scikit-learn for metrics.
"""

HELPER = "trial.py"  # goes with every trial
COURIER = "courier.py"  # goes with the trials of a study with early stopping, and with gangs
# The contract's files in a trial's folder; the helper, which travels alone, has them once more.
TRIAL, RESULT, PROGRESS = "trial.json", "result.json", "progress.jsonl"
# The folder there by which a running job and its access point speak; the order to stop and the
# reports as they came, in that folder. The job's programs have these names once more.
WORDS, STOP, REPORTS = "words", "stop.json", "reports.jsonl"
CHECKPOINT, MODEL = "checkpoint", "model"
GANG = "gang"  # goes with trials that are gangs
SPEAKERS = (COURIER, "channel.py", "chirp.py")  # go with each job that has a proxy
KERNELS = "kernels"  # a folder that goes with the reference trainer to GPUs and gangs, but for
NOT_ON_NODES = ("__pycache__",)
