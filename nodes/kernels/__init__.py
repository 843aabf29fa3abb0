"""Kernels for `trainer: tabular`: compiled operators that extend torch, for GPUs and CPUs.

Importing `ops` loads the kernels. If they are not compiled yet, it compiles them first. If
compiling or loading fails, `ops` uses `plain`, which has the same operators in plain torch. A trial
gets a copy of this folder without the rest of trialfleet.
"""
