"""EC2 instances as execution points of an HTCondor pool: made, watched, scaled, removed.

What asks AWS raises FleetError where AWS refuses or can't be reached, and what asks HTCondor
PoolError where it does not answer. Where what the fleet's table names can't be used (a type that
exists nowhere, an image, a subnet, a bucket), or asks for more nodes than it may have, that is an
InputError. Docstrings here say so only where there is more to say.
"""
