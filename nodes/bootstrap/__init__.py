"""Makes a bare EC2 instance an execution point of the HTCondor pool; standard library only."""
