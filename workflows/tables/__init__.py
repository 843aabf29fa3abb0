"""Tables for `trainer: tabular`: conversion of CSV and Parquet files to arrays for the trials.

The manager reads a file once, when a run is planned. So all trials of the run get the same arrays,
and a node needs only NumPy and torch.
"""
