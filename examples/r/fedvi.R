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

# Draws the effects of a run: points are means, lines 95 % intervals; as ratios where the run has ratios.
# The intercept is left out, and what has no ratio, as parts of a curve. Call it between svg("effects.svg") and dev.off(), or on a screen.
fedvi_plot <- function(run) {
  rows <- fedvi_result(run)$coefficients
  rows <- rows[!grepl("(Intercept)", rows$name, fixed = TRUE), ]
  ratio <- grep("_ratio$", names(rows), value = TRUE)
  if (length(ratio) == 1) rows <- rows[!is.na(rows[[ratio]]), ]
  ends <- cbind(rows$lower, rows$mean, rows$upper)
  if (length(ratio) == 1) ends <- exp(ends)
  label <- ifelse(rows$unit == "", rows$name, paste(rows$name, rows$unit, sep = ", "))
  place <- rev(seq_len(nrow(rows)))
  old <- par(mar = c(4, 2 + max(nchar(label)) / 2, 1, 1))
  on.exit(par(old))
  plot(ends[, 2], place, xlim = range(ends), ylim = c(0.5, nrow(rows) + 0.5), pch = 19, yaxt = "n", ylab = "",
       log = if (length(ratio) == 1) "x" else "",
       xlab = if (length(ratio) == 1) paste(sub("_", " ", ratio), "(95 % interval)") else "effect (95 % interval)")
  segments(ends[, 1], place, ends[, 3], place, lwd = 2)
  abline(v = if (length(ratio) == 1) 1 else 0, lty = 2)
  axis(2, at = place, labels = label, las = 1, tick = FALSE)
  invisible(data.frame(name = rows$name, lower = ends[, 1], middle = ends[, 2], upper = ends[, 3]))
}
