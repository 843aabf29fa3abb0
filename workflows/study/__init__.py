"""What a study.yaml is: its tables and their checks, its places, the file with its errors."""
