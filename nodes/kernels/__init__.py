"""CUDA and CPU kernels for `trainer: tabular`, as operators of torch: `torch.ops.trialfleet`.

Importing `ops` loads or builds the kernels. If this fails, `ops` uses the same operators in pure
torch, from `plain`. A trial gets a copy of this folder, `kernels`, without the rest of trialfleet.
"""
