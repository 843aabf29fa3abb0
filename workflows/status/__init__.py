"""The status of a run, with its trials, attempts and costs, from facts and rules."""
