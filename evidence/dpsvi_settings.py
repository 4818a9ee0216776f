"""What `fedvi.privacy.suggest` is worth beside settings that are tuned on the records.

    python -m evidence.dpsvi_settings              # the four models that the rule was judged on, once
    python -m evidence.dpsvi_settings --chosen-on  # the three that it was chosen on

Each cell is the mean log predictive density of test records. Steps are those of `DPSVI` with aligned
gradients, AutoNormal, flat clipping and every record in every step, written out in JAX so that a whole
grid is one program; noise is in floating point, at the noise multiplier of `fedvi.privacy.sgd` for
substitute and delta = 0.1 / records. The grid: clip norms of 0.3, 1 and 3 √D, Adam's first rates of 0.03,
0.1 and 0.3, 60 and 200 steps. Its best cell is chosen on the test records: more than tuning can reach.
"""

import argparse
import csv
import gzip
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import fedvi
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special, stats

from evidence import base

CLIPS, RATES, STEPS, SEEDS = (0.3, 1.0, 3.0), (0.03, 0.1, 0.3), (200, 60), 2
RULE = (200, 1.0, 0.1)
EPSILONS = 1.0, 4.0


class Case(NamedTuple):
    """A table and a model of it.

    Attributes:
      columns: x, y and group, arrays [N, …], in random order.
      size: D, the number of latents.
      likelihood: (θ [D], x, y, group) → log density of one record.
      prior: θ → log density.
      predict: (θ, x) → mean of y; None where R² says nothing.
    """

    columns: tuple[np.ndarray, ...]
    size: int
    likelihood: Callable[..., Any]
    prior: Callable[[Any], Any]
    predict: Callable[..., Any] | None = None


def scaled(columns: Any) -> np.ndarray:
    values = np.asarray(columns, float)
    return np.clip((values - values.mean(axis=0)) / (values.std(axis=0) + 1e-9), -4.0, 4.0)


def table(name: str, **options: Any) -> list[dict[str, str]]:
    opener: Any = gzip.open if name.endswith("gz") else open
    with opener(base.DATA / name, "rt") as file:
        return list(csv.DictReader(file, skipinitialspace=True, **options))


def design(columns: Any) -> np.ndarray:
    return np.column_stack([np.ones(len(columns)), scaled(columns)])


def uci(name: str) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(base.DATA / f"uci-regression/{name}.data.txt.gz") as file:
        raw = np.loadtxt(file)
    raw = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    return raw[:, :-1], raw[:, -1]


def normal(value: Any, scale: Any) -> Any:
    return stats.norm.logpdf(value, 0.0, scale).sum()


def logistic(x: np.ndarray, y: Any) -> Case:
    def likelihood(t: Any, x: Any, y: Any, _: Any) -> Any:
        return jax.nn.log_sigmoid((2.0 * y - 1.0) * (x @ t))

    return Case((x, np.asarray(y)), x.shape[1], likelihood, lambda t: normal(t, 2.5))


def hierarchical(x: np.ndarray, y: Any, group: np.ndarray) -> Case:
    count, groups = x.shape[1], int(group.max()) + 1

    def likelihood(t: Any, x: Any, y: Any, group: Any) -> Any:
        return jax.nn.log_sigmoid((2.0 * y - 1.0) * (x @ t[:count] + t[count + group]))

    def prior(t: Any) -> Any:
        levels = normal(t[count:-1], jnp.exp(t[-1]))
        return normal(t[:count], 2.5) + levels + normal(t[-1] + 1.0, 1.0)

    return Case((x, np.asarray(y), group), count + groups + 1, likelihood, prior)


def counts(x: np.ndarray, y: Any) -> Case:
    def likelihood(t: Any, x: Any, y: Any, _: Any) -> Any:
        return y * (x @ t) - jnp.exp(x @ t) - special.gammaln(y + 1.0)

    return Case((x, np.asarray(y)), x.shape[1], likelihood, lambda t: normal(t, 2.5))


def linear(x: np.ndarray, y: np.ndarray) -> Case:
    def likelihood(t: Any, x: Any, y: Any, _: Any) -> Any:
        return stats.norm.logpdf(y, x @ t[:-1], jnp.exp(t[-1]))

    return Case(
        (x, y), x.shape[1] + 1, likelihood, lambda t: normal(t[:-1], 2.5) + normal(t[-1], 1.0)
    )


def network(x: np.ndarray, y: np.ndarray, units: int) -> Case:
    count = x.shape[1]
    first, end = count * units, (count + 2) * units

    def predict(t: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ t[:first].reshape(count, units) + t[first : first + units])
        return hidden @ t[first + units : end] + t[end]

    def likelihood(t: Any, x: Any, y: Any, _: Any) -> Any:
        return stats.norm.logpdf(y, predict(t, x), jnp.exp(t[-1]))

    def prior(t: Any) -> Any:
        return normal(t[:first], count**-0.5) + normal(t[first:], 1.0)

    return Case((x, y), end + 2, likelihood, prior, predict)


def bank() -> Case:
    rows = table("bank-marketing/bank-full.csv.gz", delimiter=";")
    months = sorted({row["month"] for row in rows})[1:]
    numbers = ("age", "balance", "day", "campaign", "pdays", "previous")
    columns = [
        [
            *(float(row[name]) for name in numbers),
            *(row[name] == "yes" for name in ("default", "housing", "loan")),
            *(row["month"] == month for month in months),
        ]
        for row in rows
    ]
    return logistic(design(columns), [float(row["y"] == "yes") for row in rows])


def credit() -> Case:
    rows = table("credit-default/UCI_Credit_Card.csv.gz")
    answer = "default.payment.next.month"
    columns = [
        [float(value) for name, value in row.items() if name not in ("ID", answer)] for row in rows
    ]
    return logistic(design(columns), [float(row[answer]) for row in rows])


def adult() -> Case:
    rows = table("adult/adult.data.gz", fieldnames=list(map(str, range(15))))
    work = sorted({row["6"] for row in rows})
    columns = [
        [
            *(float(row[name]) for name in ("0", "4", "10", "11", "12")),
            row["9"] == "Male",
            row["5"] == "Married-civ-spouse",
        ]
        for row in rows
    ]
    group = np.array([work.index(row["6"]) for row in rows])
    return hierarchical(design(columns), [float(row["14"] == ">50K") for row in rows], group)


def abalone() -> Case:
    rows = table("abalone/abalone.data", fieldnames=list(map(str, range(9))))
    columns = [
        [*(float(row[str(place)]) for place in range(1, 8)), row["0"] == "I", row["0"] == "M"]
        for row in rows
    ]
    return counts(design(columns), [float(row["8"]) for row in rows])


CHOSEN_ON: dict[str, Callable[[], Case]] = {
    "network of 5 units, kin8nm": lambda: network(*uci("kin8nm"), 5),
    "logistic, bank": bank,
    "linear of unknown scale, protein": lambda: linear(
        design(uci("protein")[0]), uci("protein")[1]
    ),
}
JUDGED_ON: dict[str, Callable[[], Case]] = {
    "Poisson, abalone": abalone,
    "logistic with levels of work, adult": adult,
    "logistic, credit": credit,
    "network of 8 units, power": lambda: network(*uci("power"), 8),
}


def fits(case: Case, steps: int, most: int) -> tuple[Callable[..., Any], int]:
    """Returns (clip norms, rates, noise sds, keys) → (densities, R²) [cells, seeds], and the records."""
    size, order = case.size, np.random.default_rng(0).permutation(len(case.columns[0]))
    cut = int(0.8 * len(order))
    columns = [*case.columns, np.zeros(len(order), int)][:3]
    train, test = (
        [jnp.asarray(c[part], int if c.dtype.kind == "i" else jnp.float32) for c in columns]
        for part in (order[:cut][:most], order[cut:][:4_000])
    )

    def each(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(function, (None, 0, 0, 0))

    def fit(clip: Any, rate: Any, sd: Any, key: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, 3)
        start = jnp.concatenate(
            [
                jax.random.uniform(keys[0], (size,), minval=-2.0, maxval=2.0),
                jnp.full(size, jnp.log(0.1)),
            ]
        )

        def step(carry: Any, number: Any) -> tuple[Any, None]:
            at, first, second = carry
            draw = jax.random.normal(jax.random.fold_in(keys[1], number), (size,))
            theta = at[:size] + jnp.exp(at[size:]) * draw
            slopes = each(jax.grad(case.likelihood))(theta, *train)
            norms = jnp.linalg.norm(slopes, axis=1)
            slopes = jnp.where(jnp.isfinite(norms)[:, None], slopes, 0.0)
            slopes = (
                slopes
                * jnp.minimum(1.0, clip / jnp.maximum(jnp.linalg.norm(slopes, axis=1), 1e-9))[
                    :, None
                ]
            )
            noise = sd * clip * jax.random.normal(jax.random.fold_in(keys[2], number), (size,))
            slope = slopes.sum(axis=0) + noise + jax.grad(case.prior)(theta)
            slope = jnp.nan_to_num(
                jnp.concatenate([slope, slope * draw * jnp.exp(at[size:]) + 1.0])
            )
            first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
            moved = first / (1.0 - 0.9 ** (number + 1.0))
            moved = moved / (jnp.sqrt(second / (1.0 - 0.999 ** (number + 1.0))) + 1e-8)
            return (at + moved * rate * (1.0 - number / steps), first, second), None

        zeros = jnp.zeros(2 * size)
        at = jax.lax.scan(step, (start, zeros, zeros), jnp.arange(steps))[0][0]
        draws = at[:size] + jnp.exp(at[size:]) * jax.random.normal(jax.random.key(5), (32, size))
        terms = jax.vmap(lambda theta: each(case.likelihood)(theta, *test))(draws)
        told = (special.logsumexp(terms, axis=0) - math.log(32.0)).mean()
        if case.predict is None:
            return told, jnp.nan
        means = jax.vmap(lambda theta: case.predict(theta, test[0]))(draws).mean(axis=0)
        return told, 1.0 - ((means - test[1]) ** 2).mean() / test[1].var()

    def cells(clips: Any, rates: Any, sds: Any, keys: Any) -> Any:
        one = jax.vmap(fit, (None, None, None, 0))
        return jax.lax.map(lambda cell: one(*cell, keys), (clips, rates, sds))

    return jax.jit(cells), len(train[0])


def noise_of(records: int, steps: int, epsilon: float) -> float:
    plan = fedvi.privacy.sgd(
        epsilon=epsilon, delta=0.1 / records, steps=steps, sampler="full", max_records=records,
    )  # fmt: skip
    return plan.mechanism.noise_multiplier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chosen-on", action="store_true")
    parser.add_argument("--most", type=int, default=6_000, help="training records")
    given = parser.parse_args()
    print("| model | D | ε | suggested | best of 18 | its steps, C ÷ √D, rate | R², both |")
    print("|---|---|---|---|---|---|---|")
    for name, make in (CHOSEN_ON if given.chosen_on else JUDGED_ON).items():
        case, found = make(), {}
        for steps in STEPS:
            run, records = fits(case, steps, given.most)
            cells = list(itertools.product(EPSILONS, CLIPS, RATES))
            keys = jax.random.split(jax.random.key(7), SEEDS)
            sds = {epsilon: noise_of(records, steps, epsilon) for epsilon in EPSILONS}
            settings = [
                (clip * math.sqrt(case.size), rate, sds[epsilon]) for epsilon, clip, rate in cells
            ]
            told, r2 = run(*np.array(settings, np.float32).T, keys)
            for cell, density, share in zip(cells, np.asarray(told), np.asarray(r2), strict=True):
                found[cell[0], steps, *cell[1:]] = (density.mean(), share.mean())
        for epsilon in EPSILONS:
            best = max((key for key in found if key[0] == epsilon), key=lambda key: found[key][0])
            rule, tuned = found[epsilon, *RULE], found[best]
            shares = "" if case.predict is None else f"{rule[1]:.2f}, {tuned[1]:.2f}"
            print(
                f"| {name} | {case.size} | {epsilon:g} | {rule[0]:.3f} | {tuned[0]:.3f} | "
                f"{', '.join(f'{part:g}' for part in best[1:])} | {shares} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
