"""What runs on a GPU node: trial helper, reference trainer, prediction with its models."""

HELPER = "trial.py"  # goes with every trial
TABULAR = (
    "train.py",
    "region.py",
    "descent.py",
    "settings.py",
    "table.py",
)  # the reference trainer; first runs
