"""Tables for `trainer: tabular`: from a CSV or Parquet file to the arrays for its trials.

    options        the study's `table:` section
    fetching       a region's file, also from S3
    reading        a file's rows
    csv_rows       those of CSV, for prediction too
    cells          the content of a column's cells: numbers, dates, times, booleans or text
    moments        dates as databases, tools and people write them
    amounts        numbers as people write them
    column_types   the role of a column: numeric, categorical or ignored
    training_rows  why training rows teach nothing about a column
    splits         which rows are to train, to validate, to test
    encoding       rows as a model takes them
    building       a region's table and its description
    day_profile    a profile of a day's table, for comparison with other days'
    label_score    whether columns predict the labels

Only the manager reads such files, once, when a run is planned: every trial of the run gets the same
arrays, and a node needs nothing but numpy and torch.
"""
