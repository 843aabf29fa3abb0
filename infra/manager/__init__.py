"""The manager: central manager and access point of a pool of EC2 nodes."""
