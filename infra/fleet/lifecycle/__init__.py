"""Creation and removal of a fleet, which can be repeated after they were killed at any point."""
