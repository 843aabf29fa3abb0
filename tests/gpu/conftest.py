"""What torch reads once, before the first product of matrices: a test could be too late."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as the trainer sets it
