"""The status of a run with its trials, attempts and costs, made from facts and rules."""
