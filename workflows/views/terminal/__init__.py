"""Terminal tables of runs, trials, models, days and costs."""
