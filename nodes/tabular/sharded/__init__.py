"""Training steps on ranks that each hold a part of a model, which may exceed a machine's memory."""
