"""EC2 instances as execution points of an HTCondor pool.

Functions raise FleetError if AWS refuses or can't be reached, and PoolError if HTCondor does not
answer. Functions raise InputError if the fleet's table names something unusable, or asks for too
many nodes. Docstrings repeat these errors only if there is more to say.
"""
