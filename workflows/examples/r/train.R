# Fit a local regression to a region's points.
library(jsonlite)

trial <- fromJSON(Sys.getenv("TRIALFLEET_TRIAL", "trial.json"))
points <- read.csv(trial$data[1])

# The squared error at each validation and test point, and their two means.
squares <- function(guess) (guess[61:120] - points$y[61:120])^2
errors <- function(squares) list(val_error = mean(squares[1:30]), test_error = mean(squares[31:60]))
leave <- function(...) {
  write_json(list(status = "complete", ...), "result.json", auto_unbox = TRUE, digits = NA)
}

if (trial$mode == "evaluate") { # for the study's gate: measure these models on today's points
  models <- lapply(trial$models, function(folder) readRDS(file.path(folder, "model.rds")))
  guesses <- lapply(models, predict, points)
  guesses$baseline <- rep(mean(points$y[1:60]), 120) # always predicts the mean
  dir.create("losses", showWarnings = FALSE)
  for (name in names(guesses)) {
    losses <- squares(guesses[[name]])[31:60]
    writeLines(format(losses, digits = 10), file.path("losses", paste0(name, ".txt")))
  }
  leave(models = lapply(guesses, function(guess) list(metrics = errors(squares(guess)))))
  quit(save = "no")
}

# surface = "direct" lets loess extrapolate beyond the training points
model <- loess(y ~ x, points[1:60, ],
  span = trial$params$span, degree = trial$params$degree,
  control = loess.control(surface = "direct")
)
if (trial$mode == "final") { # the full training with the best parameters: save the model
  saveRDS(model, "model/model.rds")
}
leave(metrics = errors(squares(predict(model, points))))
