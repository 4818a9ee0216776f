"""How often intervals from `site_release` cover the truth: noise-aware, and as if there were no noise.

    python benchmarks/coverage.py --size 6 --simulations 1000

Every simulation draws coefficients and records anew, splits them over the clients, and runs the rounds
of a synchronous study: the solver of the clients, and what the server makes of their answers.
"""

import argparse
import math
import time

import numpy as np

from fedvi import expfam, models
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.inference.base import Fold, Shard, Task
from fedvi.privacy import accountants, calibrate, events, mechanisms, random, sampling
from fedvi.transport import codec

DELTA = 1e-5


def records(generator, count, size, theta):
    """Returns correlated covariates (0.5 between neighbours) with an intercept, and binary outcomes."""
    noise = generator.normal(size=(count, size - 1))
    x = noise.copy()
    for column in range(1, size - 1):
        x[:, column] = 0.5 * x[:, column - 1] + math.sqrt(0.75) * noise[:, column]
    x = np.concatenate([np.ones((count, 1)), x], axis=1)
    y = generator.uniform(size=count) < 1.0 / (1.0 + np.exp(-x @ theta))
    return x.astype(np.float32), y.astype(np.float32)


def simulate(solver, family, given, seed):
    """Runs one study; returns the truth, the report, and the precision as if there were no noise."""
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=given.size) / math.sqrt(given.size)
    x, y = records(generator, given.records, given.size, theta)
    shards = [
        Shard({"x": part, "y": outcome}, np.ones(len(part), bool))
        for part, outcome in zip(
            np.split(x, given.clients), np.split(y, given.clients), strict=True
        )
    ]
    prior, root = family.isotropic(1.0), random.insecure_root(seed)
    factors = [family.zeros()] * given.clients
    standing, q = None, prior
    for visit in range(given.rounds):
        for client, shard in enumerate(shards):
            task = Task(f"{client}/{visit}", str(client), visit, visit, q, factors[client], 1.0)

            def key(purpose, task=task):
                return root.key(task.client, task.task_id, purpose)

            value, _ = codec.decode(codec.encode(solver.update(key, (), task, shard)[1]))
            factors[client] = tree.add(factors[client], solver.finish(value, task).delta)
        posterior = tree.total(factors, prior)
        named = {str(client): factor for client, factor in enumerate(factors)}
        fold = Fold(prior, prior, posterior, named, dict.fromkeys(named, q), 1.0)
        standing = solver.stand(family, fold, standing)
        q = standing.handed_out
    # Noise may have made some of its eigenvalues negative; then nothing is known there.
    values, vectors = np.linalg.eigh(standing.curvature.J)
    bare = prior.J + (vectors * np.maximum(values, 0.0)) @ vectors.T
    return theta, standing.reported, bare


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, kind, default, meaning in (
        ("size", int, 6, "coefficients, with the intercept"),
        ("records", int, 20_000, "of all clients together"),
        ("clients", int, 10, "of equal size"),
        ("rounds", int, 10, "visits to each client"),
        ("epsilon", float, 1.0, "under add_remove, at delta 1e-5"),
        ("share", float, 0.2, "curvature_share"),
        ("floor", float, 1.0, "of a step"),
        ("simulations", int, 1_000, "each with its own data"),
        ("seed", int, 0, "of the first simulation"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{meaning} ({default})")
    given = parser.parse_args()
    family = expfam.full_gaussian(given.size)
    model = models.logistic([f"x{i}" for i in range(given.size)], prior_scale=1.0)
    capacity = given.records // given.clients
    # Of a record with covariates of sd 1: three in four are not clipped.
    clip_norm = 1.2 * math.sqrt(given.size)

    def made(noise):
        return solvers.site_release(
            family, model, sampling.full(capacity), mechanisms.rounded_gaussian(noise),
            clip_norm=clip_norm, curvature_share=given.share, floor=given.floor,
        )  # fmt: skip

    def planned(noise):
        return events.repeat(events.Gaussian(noise, add_remove=1.0, substitute=2.0), given.rounds)

    noise = calibrate.calibrate(planned, accountants.pld("add_remove"), given.epsilon, DELTA)
    other = accountants.pld("substitute").epsilon(planned(noise), DELTA)
    print(
        f"D = {given.size}, {given.records:,} records, {given.clients} clients, {given.rounds} rounds: "
        f"noise multiplier {noise:.3g}, epsilon {given.epsilon:g} add_remove, {other:.3g} substitute"
    )
    solver, started = made(noise), time.monotonic()
    assert events.repeat(solver.cost, given.rounds) == planned(noise)
    hits, bare, errors, widths = [], [], [], []
    for number in range(given.simulations):
        theta, eta, without = simulate(solver, family, given, given.seed + number)
        mean, sd = family.moments(eta)
        bare_sd = np.sqrt(np.diag(np.linalg.inv(without)))
        hits.append(np.abs(mean - theta) < 1.959964 * sd)
        bare.append(np.abs(mean - theta) < 1.959964 * bare_sd)
        errors.append((mean - theta) / sd)
        widths.append(sd / bare_sd)
    rate, uncorrected = 100.0 * np.mean(hits), 100.0 * np.mean(bare)
    # Coordinates of one simulation are correlated: the error is over simulations.
    error = 100.0 * np.std(np.mean(hits, axis=1)) / math.sqrt(given.simulations)
    print(
        f"nominal 95 % intervals: {rate:.1f} % noise-aware (standard error {error:.1f}; by coefficient "
        f"{100 * np.min(np.mean(hits, 0)):.1f} to {100 * np.max(np.mean(hits, 0)):.1f}), "
        f"{uncorrected:.1f} % as if there were no noise; sds {np.mean(widths):.2f} times those; "
        f"errors of sd {np.std(errors):.2f} and mean {np.mean(errors):+.2f} in reported sds; "
        f"{given.simulations} simulations, {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
