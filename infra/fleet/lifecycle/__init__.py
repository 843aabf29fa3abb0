"""Creation and removal of a fleet; both can be repeated after they were killed at any point."""
