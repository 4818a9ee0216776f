"""Bayesian logistic regression on a synthetic table: one class name changed, and it is private.

    python examples/one-table/logistic.py
    python examples/one-table/logistic.py --epsilon 0.3 --records 50000

10,000 records of four covariates and an intercept, as in the example of d3p (arXiv:2103.11648). The
posterior is fitted twice with a guarantee, and once without; each predicts records that none has seen.
"""

import argparse

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Predictive, Trace_ELBO, init_to_feasible
from numpyro.infer.autoguide import AutoDiagonalNormal
from telling import add_plan_options, sampling, tell

import fedvi

HELD_OUT = 4_000


def table(records, covariates=4, seed=123):
    """Draws coefficients, and records that follow them; the first column is the intercept's."""
    random = np.random.default_rng(seed)
    b = random.normal(size=covariates + 1)
    x = np.column_stack([np.ones(records), random.normal(size=(records, covariates))])
    y = random.random(records) < 1.0 / (1.0 + np.exp(-x @ b))
    return x.astype(np.float32), y.astype(np.float32), b


def model(x, y=None):
    """y ~ Bernoulli(σ(xᵀb)), b ~ N(0, I)."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def report(name, guide, params, x, y):
    """Prints accuracy and mean log-likelihood of the posterior predictive on records held out."""
    draw = Predictive(guide, params=params, num_samples=500)
    b = draw(jax.random.key(1))["b"]
    probability = (1.0 / (1.0 + np.exp(-x @ np.asarray(b).T))).mean(axis=1)
    accuracy = np.mean((probability > 0.5) == y)
    likelihood = np.log(np.where(y == 1.0, probability, 1.0 - probability)).mean()
    print(f"{name:22} accuracy {accuracy:.4f}   log-likelihood {likelihood:.4f}")


def main():
    """Fits and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=10_000, help="(default %(default)d)")
    parser.add_argument("--clip-norm", type=float, default=1.0, help="(default %(default)g)")
    add_plan_options(parser, epsilon=1.0, delta=1e-5, steps=300, rate=0.05)
    args = parser.parse_args()

    x, y, b = table(args.records + HELD_OUT)
    train, test = (x[HELD_OUT:], y[HELD_OUT:]), (x[:HELD_OUT], y[:HELD_OUT])
    optim = optax.adam(optax.cosine_decay_schedule(0.1, args.steps))

    # Not at a random point, from which noise would have to lead back.
    guide = AutoDiagonalNormal(model, init_loc_fn=init_to_feasible)
    plain = SVI(model, guide, optim, Trace_ELBO())
    result = plain.run(jax.random.key(0), args.steps, *train, progress_bar=False)
    report("not private", guide, result.params, *test)

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
        svi = fedvi.DPSVI(model, guide, optim, Trace_ELBO(), plan, gradients=gradients)
        result = svi.run(jax.random.key(0), args.steps, *train, progress_bar=False)
        report(f"private, {gradients}", guide, result.params, *test)

    best = np.mean((test[0] @ b > 0.0) == test[1])
    print(f"{'true coefficients':22} accuracy {best:.4f}")
    print(result.remark)
    tell(svi)
    print(
        "The other private fit was charged as much to a ledger of its own: publish one of the two."
    )


if __name__ == "__main__":
    main()
