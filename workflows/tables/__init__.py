"""Tables for `trainer: tabular`: from a CSV or Parquet file to the arrays that trials read.

    reading        a file's rows
    csv_rows       the rows of a CSV file, also for predictions
    cells          the content of a column's cells: numbers, dates, times, booleans or text
    moments        dates as databases, tools and people write them
    amounts        numbers as people write them
    column_types   the role of a column: numeric, categorical or ignored
    training_rows  columns that are useless because of their training rows
    splits         the split of rows into training, validation and test
    encoding       rows in a model's form
    building       a region's table and its description
    day_profile    a profile of a day's table, for comparison with other days
    label_score    a score of how well columns predict the labels

Only the manager reads such files, once, when a run is planned. So every trial of the run gets the
same arrays, and a node only needs NumPy and torch.
"""
