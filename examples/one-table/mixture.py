"""A mixture of five Gaussians, assignments summed out, fitted with a guarantee for each record.

    python examples/one-table/mixture.py
    python examples/one-table/mixture.py --epsilon 0.1

The data are those of Jälkö, Dikmen and Honkela (2017), arXiv:1610.08749: 2,000 points in the plane from
five equal clusters at (0, 0) and (±2, ±2), variance 0.5. Printed is the mean log predictive density of
points held out, beside that of the true mixture, of one Gaussian, and of a fit without privacy.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from mixtures import gaussian_mixture
from numpyro.infer import SVI, Trace_ELBO, init_to_value, log_likelihood
from numpyro.infer.autoguide import AutoDiagonalNormal
from telling import add_plan_options, sampling, tell

import fedvi

CLUSTERS, HELD_OUT = 5, 10_000
CENTRES = 2.0 * np.array([[0, 0], [1, 1], [-1, -1], [-1, 1], [1, -1]])
VARIANCE = 0.5


def points(count, seed):
    """Draws points of the true mixture."""
    random = np.random.default_rng(seed)
    cluster = random.integers(0, CLUSTERS, count)
    found = CENTRES[cluster] + np.sqrt(VARIANCE) * random.normal(size=(count, 2))
    return found.astype(np.float32)


def start():
    """Returns where the search begins: centres on a circle, chosen without looking at the data.

    Equal centres would stay equal, and random ones may lie where no cluster is.
    """
    angle = 2.0 * np.pi * np.arange(CLUSTERS) / CLUSTERS
    return {
        "weights": jnp.full(CLUSTERS, 1.0 / CLUSTERS),
        "locations": jnp.asarray(1.5 * np.stack([np.cos(angle), np.sin(angle)], 1), jnp.float32),
        "variances": jnp.ones(CLUSTERS),
    }


def log_density(x, weights, locations, variances):
    """Returns log Σₖ wₖ N(x; mₖ, vₖ·I)."""
    distance = ((x[:, None] - locations) ** 2).sum(axis=-1)
    parts = np.log(weights) - np.log(2.0 * np.pi * variances) - distance / (2.0 * variances)
    return np.logaddexp.reduce(parts, axis=1)


def predictive(model, guide, params, *data, draws=200):
    """Returns the mean over records of log E_q[p(record | θ)]; the model has one observed site."""
    samples = guide.sample_posterior(jax.random.key(1), params, sample_shape=(draws,))
    (terms,) = map(np.asarray, log_likelihood(model, samples, *data).values())
    return (np.logaddexp.reduce(terms, axis=0) - np.log(draws)).mean()


def main():
    """Fits and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000, help="(default %(default)d)")
    parser.add_argument("--clip-norm", type=float, default=1.0, help="(default %(default)g)")
    add_plan_options(parser, epsilon=1.0, delta=1e-3, steps=100, rate=0.2)
    args = parser.parse_args()

    x, test = points(args.records, 123), points(HELD_OUT, 124)
    model = gaussian_mixture(CLUSTERS, location_scale=2.0)

    def guide():
        return AutoDiagonalNormal(model, init_loc_fn=init_to_value(values=start()))

    def line(name, value):
        print(f"{name:22} log predictive density {value:.3f}")

    true = log_density(
        test, np.full(CLUSTERS, 1.0 / CLUSTERS), CENTRES, np.full(CLUSTERS, VARIANCE)
    )
    line("true mixture", true.mean())
    line("one round Gaussian", log_density(test, 1.0, np.zeros((1, 2)), test.var()).mean())
    q = guide()
    plain = SVI(model, q, optax.adam(optax.cosine_decay_schedule(0.05, 1_000)), Trace_ELBO())
    result = plain.run(jax.random.key(0), 1_000, x, progress_bar=False)
    line("not private", predictive(model, q, result.params, test))

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
        q = guide()
        optim = optax.adam(optax.cosine_decay_schedule(0.1, args.steps))
        svi = fedvi.DPSVI(model, q, optim, Trace_ELBO(), plan, gradients=gradients)
        result = svi.run(jax.random.key(0), args.steps, x, progress_bar=False)
        line(f"private, {gradients}", predictive(model, q, result.params, test))

    median = q.median(result.params)
    print("\nweight  centre            variance")
    for weight, centre, variance in zip(*(median[k] for k in start()), strict=True):
        print(f"{weight:6.3f}  ({centre[0]:6.2f}, {centre[1]:6.2f})  {variance:8.3f}")
    tell(svi)
    print(
        "The other private fit was charged as much to a ledger of its own: publish one of the two."
    )


if __name__ == "__main__":
    main()
