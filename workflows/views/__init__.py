"""What people and programs see of a run: terminal, page, report, answers of `trialfleet why`."""
