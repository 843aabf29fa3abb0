"""EC2 instances as execution points of an HTCondor pool. A "node" here is such an instance.

Functions raise FleetError if AWS refuses or can't be reached, and PoolError if HTCondor does not
answer. They raise InputError if the `fleet:` table names something unusable, or asks for too many
nodes. Docstrings repeat these errors only if there is more to say.
"""
