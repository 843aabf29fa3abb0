"""The bill of runs: the costs of their jobs and of their fleets' EC2 nodes."""
