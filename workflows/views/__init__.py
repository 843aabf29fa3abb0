"""The views of a run: terminal, page, report, answers to `why`."""
