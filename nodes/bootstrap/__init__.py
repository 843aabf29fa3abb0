"""The bootstrap of a bare EC2 instance to an execution point of the pool; standard library only."""
