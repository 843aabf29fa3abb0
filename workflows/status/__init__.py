"""Where a run stands, with its trials, attempts and costs: facts, joined by the rules."""
