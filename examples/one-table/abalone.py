"""DP-ADVI on Abalone: how old is a shell, over budgets, clip norms and batch sizes.

    python examples/one-table/abalone.py --data abalone.data
    python examples/one-table/abalone.py --data abalone.data --epsilon 0.05 0.3 2 --plot abalone.png

Bayesian logistic regression with an automatic guide, on the task of Jälkö, Dikmen and Honkela (2017),
arXiv:1610.08749: ten rings or more against fewer, from sex and seven measurements, the first four
fifths of the file to learn from. Each row fits one noise twice, with plain and with aligned gradients,
and puts beside it what several accountants ask for that noise:

    PLD, RDP, advanced     upper bounds. RDP is the moments accountant made a bound for any relation.
    moments 2016, poster   historical, not a guarantee: the first moments accountant, and the formula of
                           the DP-ADVI poster. Both with add_remove, which is what they were argued for.

`abalone.data` is the file of the UCI Machine Learning Repository, doi:10.24432/C55C7W.
"""

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, init_to_feasible
from numpyro.infer.autoguide import AutoDiagonalNormal
from rich.console import Console
from rich.table import Table
from telling import add_common_options, sampling, tell

import fedvi
from fedvi import errors
from fedvi.privacy import accountants, historical

# Public: round numbers near the statistics printed in abalone.names. Nothing is standardised from the
# records, which would have to be paid for. Order: sex (infant, female, male), then measurements.
SEX = {"I": -1.2, "F": 0.0, "M": 1.2}
CENTRE = np.array([0.5, 0.4, 0.14, 0.8, 0.35, 0.18, 0.24])
SCALE = np.array([0.12, 0.1, 0.04, 0.5, 0.22, 0.11, 0.14])
LARGEST = 4.0
OLD = 10  # rings


class Row(NamedTuple):
    """One line of the table: what was asked for, what came out, and its prices."""

    epsilon: float
    clip_norm: float
    batch: float
    noise: float
    plain: float
    aligned: float
    rdp: float
    advanced: float
    pld_add_remove: float
    moments: float
    poster: float


def table(path):
    """Reads x [n, 8] and y [n]."""
    with Path(path).open(newline="") as file:
        lines = list(csv.reader(file))
    measured = np.array([line[1:8] for line in lines], float)
    scaled = np.clip((measured - CENTRE) / SCALE, -LARGEST, LARGEST)
    x = np.column_stack([[SEX[line[0]] for line in lines], scaled])
    y = np.array([int(line[8]) >= OLD for line in lines])
    return x.astype(np.float32), y.astype(np.float32)


def model(x, y=None):
    """y ~ Bernoulli(σ(xᵀb)), b ~ N(0, I), as in the paper: without an intercept."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def guide():
    """Returns a Gaussian of independent coordinates, centred at 0 to begin with."""
    return AutoDiagonalNormal(model, init_loc_fn=init_to_feasible)


def accuracy(params, x, y):
    """Returns that of the posterior predictive: its sign is that of xᵀ(posterior mean)."""
    return float(np.mean((x @ np.asarray(params["auto_loc"]) > 0.0) == (y == 1.0)))


def fit(plan, gradients, learning_rate, train, test):
    """Fits as often as the plan has runs; returns the mean accuracy, and the DPSVI."""
    optim = optax.adam(optax.cosine_decay_schedule(learning_rate, plan.steps))
    svi = fedvi.DPSVI(model, guide(), optim, Trace_ELBO(), plan, gradients=gradients)
    found = [
        svi.run(jax.random.key(run), plan.steps, *train, progress_bar=False).params
        for run in range(plan.runs)
    ]
    return float(np.mean([accuracy(params, *test) for params in found])), svi


def row(args, epsilon, clip_norm, batch, train, test):
    """Fits one noise, plainly and aligned, and prices it."""
    usual = {
        "delta": args.delta,
        "steps": args.steps,
        "max_records": len(train[0]),
        "clip_norm": clip_norm,
        "batch": batch,
        **sampling(args),
    }
    noise = fedvi.privacy.sgd(epsilon=epsilon, **usual).mechanism.noise_multiplier
    plan = fedvi.privacy.sgd(noise_multiplier=noise, runs=args.repeats, **usual)
    rate = clip_norm / 2.0 if args.learning_rate is None else args.learning_rate
    plain, _ = fit(plan, "full", rate, train, test)
    aligned, svi = fit(plan, "aligned", rate, train, test)

    def price(accountant):
        if not accountant.supports(plan.run):
            return float("nan")
        try:
            return accountant.epsilon(plan.run, args.delta)
        except errors.PrivacyError:  # a loose bound may find no finite epsilon at this δ
            return float("nan")

    prices = (
        accountants.rdp(args.relation),
        accountants.advanced(args.relation),
        accountants.pld("add_remove"),
        historical.moments("add_remove"),
        historical.poster("add_remove"),
    )
    found = Row(epsilon, clip_norm, batch, noise, plain, aligned, *map(price, prices))
    return found, svi


def show(rows, relation):
    """Prints the table."""
    found = Table(title=f"accuracy on records held out, and ε of one fit ({relation} unless said)")
    for name in (
        *("ε (PLD)", "clip", "batch", "noise", "plain", "aligned", "RDP", "advanced"),
        *("PLD, add_remove", "moments 2016 *", "poster *"),
    ):
        found.add_column(name, justify="right")
    for one in rows:
        found.add_row(
            *(f"{one.epsilon:g}", f"{one.clip_norm:g}", f"{one.batch:g}", f"{one.noise:.2f}"),
            *(f"{value:.4f}" for value in (one.plain, one.aligned)),
            *("–" if np.isnan(value) else f"{value:.3f}" for value in one[6:]),
        )
    Console(width=130).print(found)
    print(f"* {historical.LABEL}; under add_remove")


def plot(rows, reference, path):
    """Draws accuracy over ε, one line a clip norm and batch size."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.0, 4.0), layout="constrained")
    for clip_norm, batch in dict.fromkeys((one.clip_norm, one.batch) for one in rows):
        line = [one for one in rows if (one.clip_norm, one.batch) == (clip_norm, batch)]
        label = f"clip norm {clip_norm:g}, batch {batch:g}"
        axes.plot([one.epsilon for one in line], [one.aligned for one in line], "o-", label=label)
    axes.axhline(reference, color="grey", linestyle="--", label="not private")
    axes.set(xscale="log", xlabel="ε (PLD)", ylabel="accuracy on records held out")
    axes.legend()
    figure.savefig(path)


def main():
    """Sweeps and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, metavar="FILE", help="abalone.data")
    add("--epsilon", type=float, nargs="+", default=[0.05, 0.3, 2.0], help="(default 0.05 0.3 2)")
    add("--clip-norm", type=float, nargs="+", default=[0.5, 1.0], help="(default 0.5 1)")
    add(
        "--batch", type=float, nargs="+", default=[167, 668], help="expected size (default 167 668)"
    )
    add("--delta", type=float, default=1e-3, help="as in the paper (default %(default)g)")
    add("--steps", type=int, default=200, help="of a fit (default %(default)d)")
    add("--learning-rate", type=float, help="of Adam, falling to 0 (default: half the clip norm)")
    add(
        "--repeats",
        type=int,
        default=1,
        help="average accuracy over so many fits; who publishes all of them pays for all, and the "
        "statement at the end does (default %(default)d)",
    )
    add("--plot", metavar="PNG", help="draw accuracy over ε into this file")
    add_common_options(parser)
    args = parser.parse_args()

    x, y = table(args.data)
    cut = int(0.8 * len(y))
    train, test = (x[:cut], y[:cut]), (x[cut:], y[cut:])
    optim = optax.adam(optax.cosine_decay_schedule(0.05, 2_000))
    plain = SVI(model, guide(), optim, Trace_ELBO())
    result = plain.run(jax.random.key(0), 2_000, *train, progress_bar=False)
    reference = accuracy(result.params, *test)
    frequent = max(test[1].mean(), 1.0 - test[1].mean())
    print(f"not private: accuracy {reference:.4f}; the more frequent class: {frequent:.4f}")

    rows = []
    for epsilon in args.epsilon:
        for clip_norm in args.clip_norm:
            for batch in args.batch:
                one, svi = row(args, epsilon, clip_norm, batch, train, test)
                rows.append(one)
    show(rows, args.relation)
    if args.plot:
        plot(rows, reference, args.plot)
    print("\nThe last fit of the table; every other has a ledger and a price of its own.")
    tell(svi)


if __name__ == "__main__":
    main()
