"""What all unit tests share."""

from __future__ import annotations

import os

# Plain torch, not a library that a compiler must make first; test_kernels_build.py makes one.
os.environ.setdefault("TRIALFLEET_PLAIN", "1")
