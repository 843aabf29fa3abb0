"""The machines: the embedded HTCondor pool, the manager, and fleets of EC2 instances."""
