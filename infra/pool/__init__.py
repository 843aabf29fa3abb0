"""The embedded pool (HTCondor on this machine, in one folder), and queries of any pool."""
