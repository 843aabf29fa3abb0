"""The jobs of a run: their event logs, their agents' messages, and their slots' costs."""
