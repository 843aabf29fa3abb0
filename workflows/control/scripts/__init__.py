"""Programs of a run's DAG nodes that run on the access point: PRE, POST, publish, report, fleet."""
