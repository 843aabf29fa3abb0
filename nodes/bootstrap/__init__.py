"""Makes a bare EC2 instance an execution point of the pool; standard library only."""
