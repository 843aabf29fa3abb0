"""EC2 instances as machines of an HTCondor pool, here called nodes.

A function raises FleetError if AWS refuses a call or can't be reached. It raises PoolError if
HTCondor does not answer. It raises InputError if the `fleet:` table can't be used. Docstrings
mention these errors only if there is more to say.
"""
