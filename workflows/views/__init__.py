"""The views of a run: terminal, page, report, and answers to `why`."""
