"""What runs on a GPU node: trial helper, reference trainer, prediction with its models."""

HELPER = "trial.py"  # goes with every trial
TABULAR = (  # the reference trainer; the first one runs
    "train.py",
    "descent.py",
    "feed.py",
    "fused.py",
    "judge.py",
    "network.py",
    "pace.py",
    "ranks.py",
    "region.py",
    "settings.py",
    "steps.py",
    "table.py",
)
KERNELS = "kernels"  # a folder that goes with the reference trainer where there is a GPU, but for
NOT_ON_NODES = ("__pycache__", "bench*", "npp.py", "timing.py", "*.md")
