"""Early stopping: `curves` predicts final losses, `policy` chooses the trials to stop."""

FLOOR = 0.05  # part of a training's steps before a trial may be stopped, unless a study sets it
