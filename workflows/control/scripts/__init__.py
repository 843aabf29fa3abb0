"""What the nodes of a run's graph run on the access point: PRE, POST, publish, report, fleet."""
