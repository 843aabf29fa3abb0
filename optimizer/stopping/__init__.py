"""Early stopping: `curves` predicts how learning curves end, `rule` chooses trials."""

FLOOR = 0.05  # part of a training's steps before a trial may be stopped, unless a study sets it
