"""The status of a run: its state, trials, attempts and costs, derived from stored facts."""
