"""Training steps of a model that is divided among the ranks, or is partly in main memory.

settings.py decides which models need such steps.
"""
