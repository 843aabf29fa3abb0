"""EC2 instances as execution points of an HTCondor pool: made, watched, scaled, removed.

What asks AWS raises FleetError where AWS refuses or can't be reached, and what asks HTCondor
PoolError where it does not answer: docstrings here say so only where there is more to say.
"""
