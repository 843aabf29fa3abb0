"""Creation and removal of a fleet; both may be killed at any point and repeated."""
