"""The models of a region as they lie in its folder: which one is in force, and why."""
