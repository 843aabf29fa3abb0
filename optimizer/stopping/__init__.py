"""Early stopping: `curves` predicts where a learning curve ends, `policy` decides who is told."""

FLOOR = 0.05  # of a training's steps, before a trial may be told, where a study doesn't say more
