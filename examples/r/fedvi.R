# fedvi from R: runs the commands, and reads what they leave. Needs the package jsonlite, and fedvi on the PATH.

# Runs a command of fedvi and returns what it printed; stops with its own words if it fails.
fedvi <- function(...) {
  said <- suppressWarnings(system2("fedvi", shQuote(c(...)), stdout = TRUE, stderr = TRUE))
  status <- attr(said, "status")
  if (!is.null(status) && status != 0) stop(paste(said, collapse = "\n"), call. = FALSE)
  said
}

# Reads the folder of a run: coefficients (with the odds, rate or hazard ratio where there is one), what is
# claimed for all sites together, and the warnings. A server's --state keeps the same under `result`.
fedvi_result <- function(run) {
  path <- file.path(run, c("result.json", file.path("result", "result.json")))
  path <- path[file.exists(path)]
  if (length(path) == 0) stop(run, " holds no result.json: has the run ended?", call. = FALSE)
  found <- jsonlite::fromJSON(path[1])
  claims <- found$consortium
  if (NROW(claims) > 0) claims <- claims[, c("relation", "view", "unit", "epsilon", "delta")]
  list(coefficients = found$coefficients, claims = claims, mark = found$mark, warnings = found$warnings)
}

# Draws of the posterior, one column for each coefficient. They cost nothing further, however many.
fedvi_draws <- function(run, draws = 4000) {
  file <- tempfile(fileext = ".csv")
  on.exit(unlink(c(file, paste0(file, ".json"))))
  fedvi("posterior", run, "--to", file, "--draws", as.character(draws))
  read.csv(file, check.names = FALSE)
}
