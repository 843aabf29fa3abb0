"""What people and programs see of a run: terminal, page, report, and answers to `why`."""
