"""Every benchmark, as ratios within one run: machinery (`make bench`), kernels, trainer.

The kernels' needs torch and numpy alone, as a bare machine with a GPU has them.
"""
