"""CUDA and CPU kernels for the reference trainer, as operators of torch: `torch.ops.trialfleet`.

Importing `ops` loads or builds the kernels. If that fails, `ops` uses the same operators in pure
torch, from `plain`. A trial's sandbox has a copy of this folder as `kernels`, without the rest of
trialfleet.
"""
