"""A cloud on one machine: namespaces as its instances, moto as AWS, and everything else real.

Tests use `lab.Lab`. Modules named `stand_in_*` imitate what can't exist here. They run on the lab's
machines, where this folder is /opt/lab, with only the standard library.
"""
