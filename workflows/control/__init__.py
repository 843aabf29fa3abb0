"""What is done with runs: planned, submitted, answered, repaired, stopped, published, told of."""
