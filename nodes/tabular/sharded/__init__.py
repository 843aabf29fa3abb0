"""Steps on ranks that each hold a part of the model, for models that exceed a machine's memory.

    steps         an epoch's steps, and checkpoints of the whole model
    embedding     the table of embeddings, with its rows divided among the ranks
    host_rows     rows in main memory, with a batch's rows on a GPU
    missed_steps  the optimiser's steps for rows that were not on the GPU
    layers        the hidden layers, with their rows divided among the ranks

Trials on GPUs and in gangs get this folder with the trainer's files.
"""
