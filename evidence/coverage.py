"""How often a study's default intervals cover the truth, for the worst coefficient of each kind of columns.

Every simulation draws coefficients and records anew, and runs a synchronous study as `fedvi init` drafts
it where noise is not large beside the records: `site_release`, `clip_norm = "auto"`, 12 rounds, prior
N(0, 2.5²), substitute. Answers of the four sites are only ever added, so one site stands for all of them:
with their records, and twice the noise of one. Widths are told beside those of an oracle that sees the
records: sds of the normal law at their optimum.
"""

import math
from typing import NamedTuple

import numpy as np
from fedvi import expfam, models
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.privacy import accountants, calibrate, events, mechanisms, random, sampling
from fedvi.privacy.release import decoded
from fedvi.report.tables import SETTLED
from fedvi.updates.base import Fold, Shard, Task
from fedvi.updates.coordinates import Foreseen

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


DESIGNS = {
    design.__name__: (design, norm)
    for design, norm in (
        (unit, 1.0),
        (bounds, 0.35),
        (skewed, 0.35),
        (rare, 0.5),
        (correlated, 0.35),
    )
}


def best(x, y):
    """Returns the posterior's mode, and sds of the normal law there, [D] both."""
    theta, prior = np.zeros(x.shape[1]), np.eye(x.shape[1]) / PRIOR_SD**2
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-x @ theta))
        precision = prior + (x.T * (p * (1.0 - p))) @ x
        step = np.linalg.solve(precision, x.T @ (y - p) - prior @ theta)
        theta = theta + step * min(1.0, 5.0 / np.linalg.norm(step))
    return theta, np.sqrt(np.diag(np.linalg.inv(precision)))


def simulate(solver, family, design, records, rounds, seed):
    """Runs one study; returns the truth, its last standing, and all records."""
    generator = np.random.default_rng(seed)
    size, count = family.size, SITES * records
    theta = generator.normal(size=size)
    x = np.concatenate([np.ones((count, 1)), design(generator, count, size - 1)], axis=1)
    x = x.astype(np.float32)
    theta[0] -= (x.astype(float) @ theta).mean()  # about as many yes as no
    y = (generator.uniform(size=count) < 1.0 / (1.0 + np.exp(-x @ theta))).astype(np.float32)
    shard = Shard({"x": x, "y": y}, np.ones(count, bool))
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
        fold = Fold(prior, prior, posterior, {"all": factor}, {"all": q}, 1.0, surveys)
        standing = solver.stand(family, fold, standing)
        q = standing.handed_out
    return theta, standing, x.astype(float), y


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
    design, square = DESIGNS[name]
    family = expfam.full_gaussian(size)
    names = ["(Intercept)", *(f"x{index}" for index in range(1, size))]
    model = models.logistic(names, prior_scale=PRIOR_SD)
    foreseen = Foreseen(rounds, 1, SITES * records, math.sqrt(1.0 + (size - 1) * square))

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
        mode, own = best(x, y)
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
