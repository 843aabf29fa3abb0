"""Every benchmark compares two ways in one run: machinery (`make bench`), kernels, trainer.

The benchmarks of the kernels need only torch and NumPy, as on a new machine with a GPU.
"""
