"""Set the cuBLAS workspace: torch reads it once, before the first matrix product."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as the trainer sets it
