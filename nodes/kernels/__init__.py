"""CUDA and CPU kernels for the reference trainer, as operators of torch: `torch.ops.trialfleet`.

    ops         the operators, typed; importing it loads or builds them, or falls back to `plain`
    plain       the same in pure torch: the reference, and the last fallback
    build       compiles csrc/ for this machine's torch and GPUs, once
    toolchain   the compilers and their options

`python -m trialfleet.nodes.kernels build` builds ahead of time; `status` shows what is loaded, and
why nothing better is. `ops` and its dependencies are also sent without the rest of trialfleet, in
the folder `kernels` of a trial's sandbox.
"""
