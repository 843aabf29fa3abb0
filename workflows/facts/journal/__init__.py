"""What became of the regions of a study on its days, and the events that people are told of."""
