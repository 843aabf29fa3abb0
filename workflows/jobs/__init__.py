"""The jobs of a run: what their event logs say, and which of them are in trouble."""
