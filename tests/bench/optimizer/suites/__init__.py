"""A comparison of optimisers on COCO's suites and on functions like real tuning tasks."""
