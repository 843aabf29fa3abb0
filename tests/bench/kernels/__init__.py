"""MulC as in 2014, and each fused kernel against torch.compile: `make bench-kernels`."""
