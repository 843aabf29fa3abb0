"""What became of each region of a study on each of its days, and where that is written."""
