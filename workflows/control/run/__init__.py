"""What is done with a run: planned, checked, submitted, watched, stopped, resumed."""
