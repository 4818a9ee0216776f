"""How often a study's default intervals cover the truth, for the worst coefficient of each kind of columns.

Every simulation draws coefficients and records anew, and runs a synchronous study as `fedvi init` drafts
it where noise is not large beside the records: `site_release`, `clip_norm = "auto"`, 12 rounds, prior
N(0, 2.5²), substitute. Answers of the four sites are only ever added, so one site stands for all of them:
with their records, and twice the noise of one. Widths are told beside those of an oracle that sees the
records: sds of the normal law at their optimum.

Outcomes are binary, about as many yes as no, but for three kinds: rare events, counts over exposures, and
times until an event.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from fedvi import expfam, models
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.privacy import accountants, calibrate, events, mechanisms, random, sampling
from fedvi.privacy.release import decoded
from fedvi.report.tables import SETTLED
from fedvi.updates.base import Fold, Shard, Task
from fedvi.updates.coordinates import Foreseen
from scipy.special import expit

DELTA, PRIOR_SD, SITES = 1e-5, 2.5, 4


def unit(generator, count, size):
    """Standardised columns, 0.5 correlated with their neighbours."""
    x = generator.normal(size=(count, size))
    for column in range(1, size):
        x[:, column] = 0.5 * x[:, column - 1] + math.sqrt(0.75) * x[:, column]
    return x


def bounds(generator, count, size):
    """Scaled by bounds to [-1, 1], of which they fill about a third, off centre."""
    centre = np.linspace(-0.5, 0.5, size)
    return np.clip(centre + 0.35 * generator.normal(size=(count, size)), -1.0, 1.0)


def skewed(generator, count, size):
    """Scaled by bounds that a few large values ask for: most are near the lower one."""
    return np.clip(-1.0 + 0.1 * np.exp(generator.normal(size=(count, size))), -1.0, 1.0)


def rare(generator, count, size):
    """0 or 1, 1 in 2 % to 50 % of the records."""
    return (generator.uniform(size=(count, size)) < np.geomspace(0.02, 0.5, size)).astype(float)


def correlated(generator, count, size):
    """Scaled by bounds, each 0.95 correlated with each."""
    common = generator.normal(size=(count, 1))
    alone = generator.normal(size=(count, size))
    return np.clip(0.35 * (math.sqrt(0.95) * common + math.sqrt(0.05) * alone), -1.0, 1.0)


def levels(generator, count, size):
    """0 or 1, levels of one column that 1 % of the records have each."""
    level = (generator.uniform(size=(count, 1)) * 100.0).astype(int)
    return (level == np.arange(size)).astype(float)


def lognormal(generator, count, size):
    """Scaled by bounds that are five times as wide as all but a few values in a thousand need."""
    return np.clip(-1.0 + 0.02 * np.exp(generator.normal(size=(count, size))), -1.0, 1.0)


class Design(NamedTuple):
    """Columns and their outcome.

    Attributes:
      columns: (generator, count, size) → columns without the constant.
      square: what a study guesses of a column's mean square; of a level it is 1 / levels.
      outcome: "even" or "rare" for a yes or no, "counts" over exposures, or "times" until an event.
      is_exclusive: whether at most one column is 1, and all others are 0.
    """

    columns: Any
    square: float = math.nan
    outcome: str = "even"
    is_exclusive: bool = False


DESIGNS = {
    "unit": Design(unit, 1.0),
    "bounds": Design(bounds, 0.35),
    "skewed": Design(skewed, 0.35),
    "rare": Design(rare, 0.5),
    "correlated": Design(correlated, 0.35),
    "few events": Design(bounds, 0.35, "rare"),
    "levels": Design(levels, is_exclusive=True),
    "lognormal": Design(lognormal, 0.35),
    "exposures": Design(bounds, 0.35, "counts"),
    "times": Design(bounds, 0.35, "times"),
}
# The part of the records with a rare event; counts in the longest exposure, and at most.
RARE, COUNTS, MOST = 0.03, 3.0, 60


def drawn(generator, outcome, along):
    """Draws outcomes of predictors without a constant, as a model takes them; and the constant.

    Exposures and times are parts of their bound. Counts are those over exposures of a twelfth to 1; times
    end at 1, or before by chance.
    """
    count, constant = len(along), -along.mean()
    if outcome == "rare":
        constant = scipy.optimize.brentq(lambda c: expit(c + along).mean() - RARE, -50.0, 50.0)
    elif outcome == "counts":
        constant += math.log(COUNTS)
    along = constant + along
    if outcome == "counts":
        exposure = generator.uniform(1.0 / 12.0, 1.0, count)
        events = generator.poisson(exposure * np.exp(np.minimum(along, 20.0)))
        return constant, np.stack([np.minimum(events, MOST), np.log(exposure)], axis=1)
    if outcome == "times":
        event, end = generator.exponential(np.exp(-along)), generator.uniform(0.1, 1.0, count)
        return constant, np.stack([np.minimum(event, end), event <= end], axis=1)
    return constant, generator.uniform(size=count) < expit(along)


def best(x, y, outcome="even"):
    """Returns the posterior's mode, and sds of the normal law there, [D] both."""
    theta, prior = np.zeros(x.shape[1]), np.eye(x.shape[1]) / PRIOR_SD**2
    events, exposure = y, 1.0
    if outcome == "counts":
        events, exposure = y[:, 0], np.exp(y[:, 1])
    elif outcome == "times":
        events, exposure = y[:, 1], y[:, 0]
    for _ in range(50):
        if y.ndim > 1:
            mean = curvature = exposure * np.exp(np.minimum(x @ theta, 20.0))
        else:
            mean = expit(x @ theta)
            curvature = mean * (1.0 - mean)
        precision = prior + (x.T * curvature) @ x
        step = np.linalg.solve(precision, x.T @ (events - mean) - prior @ theta)
        theta = theta + step * min(1.0, 5.0 / np.linalg.norm(step))
    return theta, np.sqrt(np.diag(np.linalg.inv(precision)))


def simulate(solver, family, design, records, rounds, seed):
    """Runs one study; returns the truth, its last standing, and all records."""
    generator = np.random.default_rng(seed)
    size, count = family.size, SITES * records
    theta = generator.normal(size=size)
    x = np.concatenate([np.ones((count, 1)), design.columns(generator, count, size - 1)], axis=1)
    x = x.astype(np.float32)
    theta[0], y = drawn(generator, design.outcome, x[:, 1:].astype(float) @ theta[1:])
    y = y.astype(np.float32)
    # A baseline hazard takes the place of the constant.
    given = x[:, 1:] if design.outcome == "times" else x
    shard = Shard({"x": given, "y": y}, np.ones(count, bool))
    prior, root = family.isotropic(PRIOR_SD), random.insecure_root(seed)
    factor, standing, q = family.zeros(), None, prior
    for visit in range(rounds):
        at = None if standing is None else standing.coordinates
        task = Task(str(visit), "all", visit, visit, q, factor, 1.0, at)

        def key(purpose, task=task):
            return root.key(task.client, task.task_id, purpose)

        value = decoded(solver.update(key, (), task, shard)[1]).value
        change = solver.finish({part: np.asarray(value[part]) for part in value}, task)
        factor = tree.add(factor, change.delta)
        surveys = {} if change.survey is None else {"all": change.survey}
        posterior = tree.add(prior, factor)
        sized = frozenset(surveys if change.sized else ())
        fold = Fold(prior, prior, posterior, {"all": factor}, {"all": q}, 1.0, surveys, sized=sized)
        standing = solver.stand(family, fold, standing)
        q = standing.handed_out
    return theta, standing, x.astype(float), y.astype(float)


class Cell(NamedTuple):
    """What intervals of one cell were worth.

    Attributes:
      hits, oracle: for each coefficient, how many runs covered the truth, and how many oracles did.
      width: median over coefficients of the geometric mean of sd ÷ the oracle's.
      warned: how many runs said of themselves that they did not converge.
      surveyed: whether the study begins with a survey of the columns.
    """

    hits: list[int]
    oracle: list[int]
    width: float
    warned: int
    surveyed: bool


def judged(name, size, records, epsilon, rounds, seeds):
    """Runs the studies of one cell, one for each seed; returns its Cell."""
    design = DESIGNS[name]
    family = expfam.full_gaussian(size)
    names = ["(Intercept)", *(f"x{index}" for index in range(1, size))]
    if design.outcome == "times":
        model = models.survival(names[1:], [], PRIOR_SD, PRIOR_SD, follow_up=1.0)
    elif design.outcome == "counts":
        model = models.poisson(names, prior_scale=PRIOR_SD, offset=True)
    else:
        model = models.logistic(names, prior_scale=PRIOR_SD)
    square = 1.0 / size if design.is_exclusive else design.square
    norm = math.sqrt(1.0 + (size - 1) * square)
    foreseen = Foreseen(rounds, 1, SITES * records, norm)
    if design.outcome == "counts":
        foreseen = foreseen._replace(most=float(MOST), exposed=0.0)
    if design.is_exclusive:
        pairs = [(i, k, -1) for i in range(1, size) for k in range(1, i)]
        foreseen = foreseen._replace(vanishing=(*((i, i, 0) for i in range(1, size)), *pairs))

    def planned(noise):
        return events.repeat(events.Gaussian(noise, add_remove=1.0, substitute=2.0), rounds)

    noise = calibrate.calibrate(planned, accountants.pld("substitute"), epsilon, DELTA)
    mechanism = mechanisms.rounded_gaussian(noise * math.sqrt(SITES))
    solver = solvers.site_release(
        family, model, sampling.full(SITES * records), mechanism, foreseen=foreseen
    )
    hits, oracle, widths, warned = [], [], [], []
    for seed in seeds:
        theta, standing, x, y = simulate(solver, family, design, records, rounds, seed)
        mean, sd = family.moments(standing.reported)
        mode, own = best(x, y, design.outcome)
        hits.append(np.abs(mean - theta) < 1.959964 * sd)
        oracle.append(np.abs(mode - theta) < 1.959964 * own)
        widths.append(np.log(sd / own))
        warned.append(not standing.surprise < SETTLED)
    return Cell(
        np.sum(hits, axis=0).tolist(),
        np.sum(oracle, axis=0).tolist(),
        float(np.median(np.exp(np.mean(widths, axis=0)))),
        sum(warned),
        solver.survey is not None,
    )
