"""The embedded pool: HTCondor's packages, configuration, user namespace and status."""
