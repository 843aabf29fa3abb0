"""Optimisers beside each other on COCO's suites and on functions like those that are tuned."""
