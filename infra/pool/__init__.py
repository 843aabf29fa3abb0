"""The embedded pool: HTCondor's packages, its configuration, user namespace, status."""
