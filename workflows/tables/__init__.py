"""Tables for `trainer: tabular`: from a CSV or Parquet file to the arrays for its trials.

    options        the study's `table:` section
    fetching       a region's file, also from S3
    reading        a file's rows
    csv_rows       those of CSV, for prediction too
    cells          what the cells of a column hold: numbers, dates, times, booleans or text
    moments        dates as databases, tools and people write them
    amounts        numbers as people write them
    column_types   what a column is: numeric, categorical or ignored
    training_rows  why the rows to train teach nothing of a column
    splits         which rows are to train, to validate, to test
    encoding       rows as a model takes them
    building       a region's table and its description
    day_profile    what a day's table is like, to compare other days' with
    label_score    whether columns tell the labels

Only the manager reads such files, once, when a run is planned: every trial of the run gets the same
arrays, and a node needs nothing but numpy and torch.
"""
