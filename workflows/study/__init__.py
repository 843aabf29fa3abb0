"""The study file: its tables and their checks, its paths, and its errors."""
