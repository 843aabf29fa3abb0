"""The manager of a pool of EC2 nodes: HTCondor's central manager and access point."""
