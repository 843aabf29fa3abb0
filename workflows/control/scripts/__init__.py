"""Programs of a run's DAG nodes on the access point: PRE, POST, publish, report, autoscaler."""
