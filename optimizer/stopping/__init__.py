"""Early stopping: `curves` predicts how learning curves end, `rule` chooses trials to stop."""

FLOOR = 0.05  # share of a training's steps before a trial may be stopped; default of `min_steps`
