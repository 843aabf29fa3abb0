"""The example for `trainer: tabular`: a CSV file per region and no code."""
