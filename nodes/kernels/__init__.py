"""CUDA and CPU kernels for the reference trainer, as operators of torch: `torch.ops.trialfleet`.

    ops         the operators, typed; importing it loads them, or has them built, or does without
    plain       the same by pure torch: reference and last fallback
    build       compiles csrc/ for this machine's torch and GPUs, once
    toolchain   the compilers, and what they are called with

`python -m trialfleet.nodes.kernels build` builds ahead of time; `status` tells what is loaded and
why nothing better. `ops` and what it needs also travel alone, in the folder `kernels` of a trial's
sandbox.
"""
