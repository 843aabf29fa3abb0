"""The bootstrap, which turns a bare EC2 instance into a node of the HTCondor pool.

It only uses Python's standard library.
"""
