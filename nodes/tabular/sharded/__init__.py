"""Steps of ranks that hold a part of the model each: for one that is more than a machine holds.

    steps       an epoch's steps, checkpoints of the whole
    embedding   the table of embeddings, its rows shared out
    host_rows   rows that lie in main memory, a batch's on a GPU
    missed_steps  what the optimiser does to rows meanwhile
    layers      the hidden layers, their rows shared out

A folder that goes with trials for GPUs and with gangs, beside the trainer's files.
"""
