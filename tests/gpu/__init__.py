"""Tests that need a GPU, and `make gpu`, which shows everything on a bare machine.

    __main__    the command: python3 -m tests.gpu [--dry] [--out FILE]
    steps       what is done, in which order, with which limits
    runner      does it, one process group after the other
    machine     what the machine is
    clocks      clocks, power and temperature of the GPU meanwhile
    compiled    what the benchmark compares with, compiled beforehand
    recorder    a plugin of pytest: the tests' results, kept after each
    counters    what Nsight Compute counted
    report      python3 -m tests.gpu.report FILE: BENCHMARKS.md

Nothing here, and nothing that it starts, imports more than torch, numpy and pytest.
"""
