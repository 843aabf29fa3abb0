"""One training over several machines: the agent of each job of a gang."""
