"""What a network with one hidden layer of 50 can learn of Adult at epsilon 2, and what keeps it from more.

A sketch, so that many settings can be looked at: one weight vector and not a posterior, which is the
easier task; each round is one clipped sum of gradients over all records, noised as one data holder would,
or as ten clients that trust nobody would together: root ten times as much. Beside both is the same
network without noise or clipping, stopped when it was best on the records that judge it, which flatters
it. Settings were chosen on a fifth of the training half; the test half is looked at once, after a fit to
all of the other.

    python -m evidence.network_frontier             # the settings named in README.md
    python -m evidence.network_frontier --search    # those they were chosen from: a quarter of an hour
"""

import argparse
import itertools
import sys
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from fedvi.privacy import accountants
from fedvi.privacy.events import Gaussian, Repeated

from evidence import adult

CLIENTS, HIDDEN, EPSILON, DELTA, DECAY, BATCH = 10, 50, 2.0, 1e-5, 1e-4, 256


class Setting(NamedTuple):
    """Holders of the records, rounds, clip norm, Adam or momentum, its rate."""

    relation: str
    holders: int
    rounds: int
    clip: float
    adam: bool
    rate: float


SETTINGS = [  # of each kind the best by likelihood, and by accuracy
    Setting("add_remove", 1, 100, 8.0, False, 0.5),
    Setting("add_remove", 1, 400, 4.0, False, 0.5),
    Setting("add_remove", CLIENTS, 400, 4.0, True, 0.01),
    Setting("add_remove", CLIENTS, 400, 2.0, False, 0.1),
    Setting("substitute", 1, 400, 8.0, True, 0.02),
    Setting("substitute", 1, 400, 1.0, False, 0.5),
    Setting("substitute", CLIENTS, 400, 4.0, True, 0.01),
    Setting("substitute", CLIENTS, 400, 2.0, False, 0.1),
]


def noise_for(relation: str, rounds: int) -> float:
    """Returns the least noise multiplier of one holder's release."""
    accountant, low, high = accountants.pld(relation), 0.1, 5_000.0
    while high / low > 1.0 + 1e-9:
        middle = (low * high) ** 0.5
        if accountant.epsilon(Repeated(Gaussian(middle), rounds), DELTA) <= EPSILON:
            high = middle
        else:
            low = middle
    return high


def started(size: int) -> dict:
    """Returns the network's weights before it learns."""
    inner = 0.3 * jax.random.normal(jax.random.key(0), (size, HIDDEN))
    zero = jnp.zeros(HIDDEN)
    return {"inner": inner, "bias": zero, "outer": zero, "level": jnp.zeros(())}


def log_odds(theta: dict, x):
    """Returns hidden units [n, H] and log odds [n]."""
    hidden = jnp.tanh(x @ theta["inner"] + theta["bias"])
    return hidden, hidden @ theta["outer"] + theta["level"]


def clipped_sum(theta: dict, x, y, clip: float) -> dict:
    """Returns the sum of clipped gradients of -log p(y | θ), by norms: none is formed."""
    hidden, odds = log_odds(theta, x)
    slope = jax.nn.sigmoid(odds) - y
    signal = slope[:, None] * theta["outer"] * (1.0 - hidden**2)
    squares = (signal**2).sum(axis=1) * ((x**2).sum(axis=1) + 1.0)
    squares += slope**2 * ((hidden**2).sum(axis=1) + 1.0)
    kept = jnp.minimum(1.0, clip / jnp.sqrt(squares + 1e-20))
    signal, slope = signal * kept[:, None], slope * kept
    return {
        "inner": x.T @ signal, "bias": signal.sum(axis=0),
        "outer": hidden.T @ slope, "level": slope.sum(),
    }  # fmt: skip


@partial(jax.jit, static_argnums=(2, 3))
def learn_privately(x, y, rounds: int, adam: bool, clip, spread, rate):
    """Returns the mean of the second half of the iterates; `spread` is the sd of a sum's noise."""
    theta = started(x.shape[1])
    falling = optax.linear_schedule(rate, 0.1 * rate, rounds)
    way = optax.adam(falling, b2=0.99) if adam else optax.sgd(falling, momentum=0.9)

    def step(carried, given):
        theta, state, mean = carried
        number, key = given
        summed, back = jax.tree.flatten(clipped_sum(theta, x, y, clip))
        keys = jax.random.split(key, len(summed))
        pairs = zip(summed, keys, strict=True)
        noised = [one + spread * jax.random.normal(key, one.shape) for one, key in pairs]
        slope = jax.tree.map(lambda g, w: g / len(y) + DECAY * w, back.unflatten(noised), theta)
        change, state = way.update(slope, state)
        theta = optax.apply_updates(theta, change)
        share = jnp.where(number >= rounds // 2, 1.0 / (rounds - rounds // 2), 0.0)
        return (theta, state, jax.tree.map(lambda a, w: a + share * w, mean, theta)), None

    keys = jax.random.split(jax.random.key(1), rounds)
    carried = theta, way.init(theta), jax.tree.map(jnp.zeros_like, theta)
    return jax.lax.scan(step, carried, (jnp.arange(rounds), keys))[0][2]


def learn_openly(x, y, epochs: int):
    """Yields the weights after each epoch of small batches, neither clipped nor noised."""
    way, theta = optax.adam(3e-3), started(x.shape[1])

    def loss(theta, x, y):
        odds = log_odds(theta, x)[1]
        return (
            jnp.mean(jax.nn.softplus(odds) - y * odds) + DECAY / 4.0 * optax.tree.norm(theta) ** 2
        )

    @jax.jit
    def epoch(theta, state, key):
        def step(carried, rows):
            theta, state = carried
            change, state = way.update(jax.grad(loss)(theta, x[rows], y[rows]), state)
            return (optax.apply_updates(theta, change), state), None

        whole = len(y) // BATCH * BATCH
        order = jax.random.permutation(key, len(y))[:whole].reshape(-1, BATCH)
        return jax.lax.scan(step, (theta, state), order)[0]

    state = way.init(theta)
    for key in jax.random.split(jax.random.key(2), epochs):
        theta, state = epoch(theta, state, key)
        yield theta


def score(theta: dict, x, y) -> tuple[float, float]:
    """Returns accuracy and mean log-likelihood."""
    odds, y = np.asarray(log_odds(theta, x)[1], dtype=float), np.asarray(y)
    likelihood = -(np.logaddexp(0.0, odds) - y * odds).mean()
    return float(np.mean((odds > 0.0) == (y == 1.0))), float(likelihood)


def main() -> int:
    """Prints a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--search", action="store_true", help="all settings, without the test half")
    given = parser.parse_args()
    x, y = (jnp.asarray(array, jnp.float32) for array in adult.design())
    train, test = np.split(np.random.default_rng(7).permutation(len(y)), [len(y) // 2])
    fit, judge = np.split(train, [len(train) * 4 // 5])
    open_ = [score(theta, x[judge], y[judge]) for theta in learn_openly(x[fit], y[fit], 40)]
    best = max(range(len(open_)), key=lambda epoch: open_[epoch][1])
    *_, theta = learn_openly(x[train], y[train], best + 1)
    found = score(theta, x[test], y[test])
    print(f"not private, {best + 1} epochs: {open_[best]}, test {found}", flush=True)
    settings = SETTINGS
    if given.search:
        ways = [(False, rate) for rate in (0.1, 0.5, 2.5)] + [(True, r) for r in (0.01, 0.02, 0.05)]
        grid = list(itertools.product((1, CLIENTS), (100, 400), (1.0, 2.0, 4.0, 8.0), ways))
        settings = [
            Setting(relation, holders, rounds, clip, *way)
            for relation in ("add_remove", "substitute")
            for holders, rounds, clip, way in grid
        ]
    for setting in settings:
        noise = noise_for(setting.relation, setting.rounds)
        spread = np.sqrt(setting.holders) * noise * setting.clip

        def fitted(rows, setting=setting, spread=spread):
            how = setting.rounds, setting.adam, setting.clip, spread, setting.rate
            return learn_privately(x[rows], y[rows], *how)

        line = f"{setting}: noise {noise:.1f}, {score(fitted(fit), x[judge], y[judge])}"
        if not given.search:
            line += f", test {score(fitted(train), x[test], y[test])}"
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
