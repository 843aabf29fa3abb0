"""What people and programs see of a run: terminal, page, report, answers to `why`."""
