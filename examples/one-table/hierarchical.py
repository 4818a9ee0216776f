"""Logistic regression whose coefficients differ by group, as the groups' characteristics say.

    python examples/one-table/hierarchical.py
    python examples/one-table/hierarchical.py --epsilon 8 --relation add_remove

The experiment of the d3p paper (arXiv:2103.11648, Section 5.3): 500 records in L = 3 groups with K = 3
characteristics, D = 5 covariates. Printed is the area under the ROC curve on records held out, as
there, and accuracy.
"""

import argparse

import jax
import numpy as np
import optax
from hierarchies import hierarchical_logistic
from numpyro.infer import SVI, Trace_ELBO, init_to_feasible
from numpyro.infer.autoguide import AutoDiagonalNormal
from scipy.stats import rankdata
from telling import add_plan_options, sampling, tell

import fedvi

HELD_OUT = 4_000


def table(records, groups=3, traits=3, covariates=5, seed=0):
    """Draws a training table and one to test on, and says what is known of the groups."""
    random = np.random.default_rng(seed)
    characteristics = np.eye(groups, traits)
    effects = random.normal(size=(covariates, traits))
    b = characteristics @ effects.T + np.sqrt(0.1) * random.normal(size=(groups, covariates))

    def draw(count):
        x = random.normal(size=(count, covariates)).astype(np.float32)
        group = random.integers(0, groups, count)
        y = random.random(count) < 1.0 / (1.0 + np.exp(-(x * b[group]).sum(axis=1)))
        return x, group, y.astype(np.float32)

    return draw(records), draw(HELD_OUT), characteristics, b


def area(score, y):
    """Returns the area under the ROC curve: how often a positive's score is above a negative's."""
    ones = y.sum()
    above = rankdata(score)[y == 1.0].sum() - ones * (ones + 1.0) / 2.0
    return above / (ones * (len(y) - ones))


def report(name, b, x, group, y):
    """Prints how coefficients [L, D] predict records held out."""
    score = (x * np.asarray(b)[group]).sum(axis=1)
    print(f"{name:22} AUC {area(score, y):.4f}   accuracy {np.mean((score > 0.0) == y):.4f}")


def mean(guide, params, characteristics):
    """Returns the posterior mean of the groups' coefficients."""
    found = guide.median(params)
    return characteristics @ np.asarray(found["effects"]).T + np.asarray(found["offsets"])


def main():
    """Fits and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=500, help="(default %(default)d)")
    parser.add_argument("--clip-norm", type=float, default=2.0, help="(default %(default)g)")
    add_plan_options(parser, epsilon=2.0, delta=2e-3, steps=200, rate=0.2)
    args = parser.parse_args()

    train, test, characteristics, b = table(args.records)
    model = hierarchical_logistic(characteristics)
    report("true coefficients", b, *test)
    guide = AutoDiagonalNormal(model, init_loc_fn=init_to_feasible)
    plain = SVI(model, guide, optax.adam(optax.cosine_decay_schedule(0.05, 1_000)), Trace_ELBO())
    result = plain.run(jax.random.key(0), 1_000, *train, progress_bar=False)
    report("not private", mean(guide, result.params, characteristics), *test)

    for gradients in ("full", "aligned"):
        plan = fedvi.privacy.sgd(
            epsilon=args.epsilon,
            delta=args.delta,
            steps=args.steps,
            rate=args.rate,
            max_records=args.records,
            clip_norm=args.clip_norm,
            **sampling(args),
        )
        guide = AutoDiagonalNormal(model, init_loc_fn=init_to_feasible)
        optim = optax.adam(optax.cosine_decay_schedule(0.05, args.steps))
        svi = fedvi.DPSVI(model, guide, optim, Trace_ELBO(), plan, gradients=gradients)
        result = svi.run(jax.random.key(0), args.steps, *train, progress_bar=False)
        report(f"private, {gradients}", mean(guide, result.params, characteristics), *test)
    tell(svi)
    print(
        "The other private fit was charged as much to a ledger of its own: publish one of the two."
    )


if __name__ == "__main__":
    main()
