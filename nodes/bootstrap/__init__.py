"""The bootstrap: it makes a bare EC2 instance an execution point of the HTCondor pool.

It only uses Python's standard library.
"""
