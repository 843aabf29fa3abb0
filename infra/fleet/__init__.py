"""EC2 instances as execution points of an HTCondor pool: how they are made, scaled and removed.

Functions that call AWS raise FleetError if AWS refuses or can't be reached; functions that ask
HTCondor raise PoolError if it does not answer. They raise InputError if the fleet's table names
something that can't be used (an unknown instance type, an image, a subnet, a bucket), or asks for
more nodes than allowed. Docstrings in this package repeat this only where there is more to say.
"""
