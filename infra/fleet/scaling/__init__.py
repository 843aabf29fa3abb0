"""The autoscaler, which starts and ends EC2 nodes: its decisions, costs, draining and process."""
