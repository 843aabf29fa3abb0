"""Early stopping: `curves` predicts how learning curves end, `policy` chooses trials to stop."""

FLOOR = 0.05  # part of a training's steps before a trial may be stopped, unless a study sets it
