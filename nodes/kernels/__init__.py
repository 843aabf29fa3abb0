"""CUDA and CPU kernels for the reference trainer, as operators of torch: `torch.ops.trialfleet`.

Importing `ops` loads or builds the kernels, or falls back to `plain`, the same in pure torch. A
trial's sandbox has this folder as `kernels`, without the rest of trialfleet.
"""
