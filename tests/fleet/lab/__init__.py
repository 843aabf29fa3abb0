"""A cloud on one machine: namespaces for its instances, moto for AWS, and everything else real.

`lab.Lab` is its door. What can't exist here is stood in for by the modules whose names say so; they
run on the machines themselves, where this folder is /opt/lab and only the standard library is.
"""
