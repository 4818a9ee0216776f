"""How often intervals of `DPSVI` cover, the guide's own and those of `noise_aware`: the worst coefficient.

    python -m evidence.descent_intervals --simulations 400
    python -m evidence.descent_intervals --models linear --designs correlated --records 2000 --sizes 5
    python -m evidence.descent_intervals --table breast-cancer
    python -m evidence.descent_intervals --table adult --clip-norm 3

Every simulation draws coefficients and records anew, and fits a mean-field guide by Adam(0.05) with
gradients `aligned`: substitute, delta = 1e-5, 400 steps at rate 0.05, prior N(0, 2.5²). Columns are
standard normal, neighbours 0.5 correlated, or each with each 0.9; the predictor has an sd of 1.5. Clip
norms are such that almost nothing is clipped; `--clip-norm` shows what clipping does. Pooled: the normal
law at the optimum of all records. A table is fitted `--simulations` times; there is no truth.
"""

import argparse
import dataclasses
import itertools
import math
import sys
import time
from typing import NamedTuple

import fedvi
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from fedvi import errors
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

DELTA, PRIOR_SD, STEPS, RATE = 1e-5, 2.5, 400, 0.05


class Outcome(NamedTuple):
    """Of one fit: errors in sds and widths.

    Attributes:
      pooled, truth: errors of the told interval, from the pooled mean and from the truth.
      own, own_truth: the same of the guide's own.
      width, own_width: of both, beside the pooled sds.
      hidden: directions whose curvature noise hides.
    """

    pooled: np.ndarray
    truth: np.ndarray
    own: np.ndarray
    own_truth: np.ndarray
    width: np.ndarray
    own_width: np.ndarray
    hidden: int


def model_of(kind):
    """Returns a NumPyro model, in which an outcome is a yes or no, or has an error of sd 1."""

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            law = dist.Normal(x @ b, 1.0) if kind == "linear" else dist.Bernoulli(logits=x @ b)
            numpyro.sample("y", law, obs=y)

    return model


def root_of(design, size):
    """Returns the Cholesky factor of the columns' correlations."""
    far = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return np.linalg.cholesky(0.5**far if design == "unit" else np.where(far, 0.9, 1.0))


def drawn(kind, design, records, size, generator):
    """Returns (x, y, coefficients), an intercept among them."""
    root = root_of(design, size - 1)
    theta = generator.normal(size=size)
    theta[1:] *= 1.5 / math.sqrt(size - 1)
    x = np.column_stack([np.ones(records), generator.normal(size=(records, size - 1)) @ root.T])
    if kind == "linear":
        return x, x @ theta + generator.normal(size=records), theta
    theta[0] -= (x @ theta).mean()
    return x, (generator.uniform(size=records) < 1.0 / (1.0 + np.exp(-x @ theta))) * 1.0, theta


def pooled(kind, x, y):
    """Returns the posterior's mode, and sds of the normal law there."""
    theta, prior = np.zeros(x.shape[1]), np.eye(x.shape[1]) / PRIOR_SD**2
    for _ in range(60):
        mean = x @ theta if kind == "linear" else 1.0 / (1.0 + np.exp(-x @ theta))
        weights = np.ones(len(x)) if kind == "linear" else mean * (1.0 - mean)
        precision = prior + (x.T * weights) @ x
        step = np.linalg.solve(precision, x.T @ (y - mean) - prior @ theta)
        theta = theta + step * min(1.0, 5.0 / max(np.linalg.norm(step), 1e-12))
    return theta, np.sqrt(np.diagonal(np.linalg.inv(precision)))


def fit_of(kind, records, epsilon, clip_norm, runs, seed):
    """Returns a `DPSVI` for many runs, each of which has the noise of a single run at ``epsilon``."""
    plan = fedvi.privacy.sgd(
        epsilon=epsilon,
        delta=DELTA,
        steps=STEPS,
        rate=RATE,
        max_records=records,
        clip_norm=clip_norm,
        float_noise=True,
        insecure_seed=seed,
    )
    # Compiled once, with the noise of one run; all of them together promise nothing.
    plan = dataclasses.replace(plan, runs=runs, epsilon=math.inf)
    model = model_of(kind)
    optim = numpyro.optim.Adam(0.05)
    return fedvi.DPSVI(
        model, AutoDiagonalNormal(model), optim, Trace_ELBO(), plan, gradients="aligned"
    )


def once(svi, key, x, y, best, sds, theta):
    """Fits once; returns what became of it, or None where there is no honest interval."""
    result = svi.run(key, STEPS, x.astype(np.float32), y.astype(np.float32), progress_bar=False)
    try:
        told = result.noise_aware()
    except errors.SolverError as error:
        print(f"  no interval: {error}", file=sys.stderr)
        return None
    wide = np.sqrt(np.diagonal(told.covariance))
    loc, scale = (np.asarray(result.params[name]) for name in ("auto_loc", "auto_scale"))
    return Outcome(
        pooled=(told.mean - best) / wide,
        truth=(told.mean - theta) / wide,
        own=(loc - best) / scale,
        own_truth=(loc - theta) / scale,
        width=wide / sds,
        own_width=scale / sds,
        hidden=told.hidden,
    )


def line(label, found):
    """Prints one row of the table."""
    pooled_z, truth_z, own, _, width, _, hidden = map(np.array, zip(*found, strict=True))
    covers = [(np.abs(z) < 1.96).mean(axis=0) for z in (own, pooled_z, truth_z)]
    numbers = [f"{100 * c.min():6.1f} {100 * c.mean():6.1f}" for c in covers]
    print(
        f"{label:38} {numbers[0]}  {numbers[1]}  {numbers[2]}  {np.exp(np.log(width).mean()):6.2f}"
        f"  {hidden.mean():6.1f}",
        flush=True,
    )


def table(name):
    """Returns (x, y) of a real data set, standardised where it is measured."""
    if name == "breast-cancer":
        from sklearn.datasets import load_breast_cancer

        x, y = load_breast_cancer(return_X_y=True)
        x = x[:, :10]
        return np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / x.std(axis=0)]), y * 1.0
    from evidence import adult

    return adult.design()


def main():
    """Prints a table: coverage (worst and mean coefficient) and width."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=40)
    parser.add_argument("--models", nargs="+", default=["logistic", "linear"])
    parser.add_argument("--designs", nargs="+", default=["unit", "correlated"])
    parser.add_argument("--records", nargs="+", type=int, default=[2_000, 20_000])
    parser.add_argument("--sizes", nargs="+", type=int, default=[5, 15])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 4.0])
    parser.add_argument("--clip-norm", type=float, help="in place of almost none clipped")
    parser.add_argument("--table", choices=["breast-cancer", "adult"])
    args = parser.parse_args()
    print(
        f"{'':38} {'own, pooled':>13}  {'told, pooled':>13}  {'told, truth':>13}  {'width':>6}  hidden"
    )
    if args.table:
        x, y = table(args.table)
        best, sds = pooled("logistic", x, y)
        for epsilon in args.epsilon:
            clip = args.clip_norm or math.sqrt(x.shape[1])
            svi = fit_of("logistic", len(x), epsilon, clip, args.simulations, 0)
            keys = jax.random.split(jax.random.key(0), args.simulations)
            found = [once(svi, key, x, y, best, sds, best) for key in keys]
            line(f"{args.table} ε {epsilon:g} clip {clip:.2g}", [one for one in found if one])
        return
    for kind, design, records, size, epsilon in itertools.product(
        args.models, args.designs, args.records, args.sizes, args.epsilon
    ):
        clip = args.clip_norm or math.sqrt(size) * (1.5 if kind == "logistic" else 2.5)
        svi = fit_of(kind, records, epsilon, clip, args.simulations, 0)
        generator, found, start = np.random.default_rng(1), [], time.time()
        for key in jax.random.split(jax.random.key(0), args.simulations):
            x, y, theta = drawn(kind, design, records, size, generator)
            found.append(once(svi, key, x, y, *pooled(kind, x, y), theta))
        line(f"{kind} {design} {records} D {size} ε {epsilon:g}", [one for one in found if one])
        print(f"  {time.time() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
