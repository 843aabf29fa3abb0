"""The study file: its tables and their checks, its paths, its errors."""
