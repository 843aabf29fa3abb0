"""Steps on ranks that each hold a part of the model, for models that exceed a machine's memory."""
