"""The models in a region's folder, and why one is the current one."""
