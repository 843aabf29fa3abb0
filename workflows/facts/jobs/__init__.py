"""The jobs of a run: what their event logs and their agents say, and what their slots cost."""
