"""Creation and removal of a fleet. If a command is killed at any point, it can be repeated."""
