"""What is done with a run: submitted, watched, stopped, resumed, found by its name."""
