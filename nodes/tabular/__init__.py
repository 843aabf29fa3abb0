"""The reference trainer for tables, `trainer: tabular`; `train.py` is where it begins.

In a trial's sandbox its files lie flat beside `trial.py`, so they import each other by either name.
"""

FILES = (  # what goes with a trial; the first one runs
    "train.py",
    "comparison.py",
    "dataset.py",
    "evaluation.py",
    "graph_steps.py",
    "kept.py",
    "loader.py",
    "local_steps.py",
    "network.py",
    "optimizers.py",
    "pace.py",
    "predict.py",
    "ranks.py",
    "settings.py",
    "steps.py",
    "table.py",
)
SHARDED = "sharded"  # a folder that goes with it to GPUs and gangs
