"""What runs on a GPU node: bootstrap, agent, probe, trial helper, kernels, reference trainer.

A node comes with Python, and trials may have torch and numpy: nothing here needs more. So there is
no psutil but /proc, no boto3 but `trialfleet.instance_aws`, no scikit-learn for metrics.
"""

HELPER = "trial.py"  # goes with every trial
COURIER = "courier.py"  # goes with the trials of a study with early stopping
# The contract's files in a trial's folder; the helper, which travels alone, has them once more.
TRIAL, RESULT, PROGRESS = "trial.json", "result.json", "progress.jsonl"
# Those of early stopping: the order, and the reports as they came; the courier has them once more.
STOP, REPORTS = "stop.json", "reports.jsonl"
CHECKPOINT, MODEL = "checkpoint", "model"
GANG, CHIRP = "gang", "chirp.py"  # go with trials that are gangs; the folder is there at both ends
KERNELS = "kernels"  # a folder that goes with the reference trainer to GPUs and gangs, but for
NOT_ON_NODES = ("__pycache__",)
