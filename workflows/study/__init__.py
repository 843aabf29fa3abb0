"""The study file `study.yaml`: its tables, the checks of values, its paths, and its errors."""
