"""Programs of a run's DAG nodes on the access point: PRE and POST scripts, publish, report, …."""
