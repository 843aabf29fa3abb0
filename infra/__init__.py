"""The machines: the embedded HTCondor pool."""
