"""The answers of `trialfleet why`: why a run, region, DAG node, job or EC2 instance is as it is."""
