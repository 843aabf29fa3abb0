"""Creation and removal of a fleet; both can be killed at any point and repeated."""
