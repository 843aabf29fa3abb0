"""The answers of `trialfleet why`, about a run, region, DAG node, job or EC2 instance."""
