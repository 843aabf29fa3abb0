"""Tables for `trainer: tabular`: from a CSV or Parquet file to the arrays that trials read.

The manager reads a file once, when a run is planned. So all trials of the run get the same arrays,
and a node needs only NumPy and torch.
"""
