"""Training steps of a sharded or offloaded model; settings.py decides which models need them."""
