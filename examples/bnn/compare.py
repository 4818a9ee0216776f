"""A Bayesian neural network of ten clients, beside a linear regression, pooling and one client alone.

    python examples/bnn/compare.py
    python examples/bnn/compare.py --rounds 10 --steps 1000
    python examples/bnn/compare.py --hidden 50 50

Printed are the root mean squared error and the mean log density of the test set's outcomes, both in MPa:
lower and higher is better. `prepare.py` comes first.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Predictive, log_likelihood

import fedvi
from fedvi.models.bnn import regression
from fedvi.report import tables
from fedvi.run import loading
from fedvi.study import build
from fedvi.study.sections import ClientSection

HERE = Path(__file__).resolve().parent
DRAWS = 500


def test_records(study, folder):
    """Reads the test set as the study reads a client's file: x [n, D] and y [n], scaled."""
    there = study.model_copy(update={"clients": [ClientSection(name="test", data="test.csv")]})
    records = loading.load_shards(build.assemble(there), folder)["test"].records
    return np.asarray(records["x"], np.float32), np.asarray(records["y"], np.float32)


def network(assembly, posterior, x, y):
    """Returns predictive means [n] and log densities [n] by draws of the weights."""
    mean, sd = assembly.family.moments(posterior)
    draws = mean + sd * np.random.default_rng(0).normal(size=(DRAWS, len(mean)))
    values = jax.vmap(assembly.model.constrain)(jnp.asarray(draws, jnp.float32))
    given = {"x": jnp.asarray(x), "hidden": tuple(assembly.study.model.arguments["hidden"])}
    predict = Predictive(regression, values)
    means = np.asarray(predict(jax.random.key(0), y=None, **given)["y"]).mean(axis=0)
    terms = np.asarray(log_likelihood(regression, values, y=jnp.asarray(y), **given)["y"])
    return means, np.logaddexp.reduce(terms, axis=0) - np.log(DRAWS)


def line(assembly, posterior, x, y):
    """Returns predictive means [n] and log densities [n] in closed form."""
    mean, _ = assembly.family.moments(posterior)
    noise = assembly.model.noise_scale
    variance = np.einsum("nd,de,ne->n", x, np.linalg.inv(posterior.J), x) + noise**2
    squares = (y - x @ mean) ** 2 / variance
    return x @ mean, -0.5 * (squares + np.log(2.0 * np.pi * variance))


def draw(rows, file):
    """Draws the error of each model as a bar; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    names = [f"{model}, {who}" for model, who, _, _ in rows]
    errors = [float(error) for _, _, error, _ in rows]
    colours = ["#0b4f8a" if model == "network" else "#8a8a8a" for model, *_ in rows]
    axes.bar_label(axes.barh(names, errors, color=colours), [row[2] for row in rows], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("error on mixtures held out, MPa")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main():
    """Fits, scores and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=HERE, help="what prepare.py wrote (default: beside this)")
    add("--rounds", type=int, default=10, help="visits to each client (default %(default)d)")
    add("--steps", type=int, default=500, help="of the optimiser, a visit (default %(default)d)")
    add("--hidden", type=int, nargs="+", help="units of each hidden layer (default: the study's)")
    add("--plot", type=Path, help="also draw the errors into this file, such as figure.svg")
    args = parser.parse_args()

    rows = []
    for name, file, score in (("network", "study", network), ("linear", "study-linear", line)):
        study = fedvi.load_study(HERE / f"{file}.toml")
        if score is network:
            schedule = study.schedule.model_copy(update={"rounds": args.rounds})
            solver = study.solver.model_copy(update={"steps": args.steps})
            model = study.model
            if args.hidden:
                model = model.model_copy(update={"hidden": args.hidden})
            study = study.model_copy(
                update={"schedule": schedule, "solver": solver, "model": model}
            )
        x, y = test_records(study, args.data)
        unit = study.data.columns_schema["strength"]["scale"]
        together = fedvi.simulate(study, args.data, pooled=True)
        first = study.model_copy(update={"clients": study.clients[:1]})
        alone = fedvi.simulate(first, args.data)
        for who, posterior in (
            ("ten clients, federated", together.posterior),
            ("all records pooled", together.pooled),
            ("one client alone", alone.posterior),
        ):
            means, densities = score(together.assembly, posterior, x, y)
            error = unit * np.sqrt(np.mean((means - y) ** 2))
            rows.append([name, who, f"{error:.2f}", f"{densities.mean() - np.log(unit):.2f}"])
    heads = ["model", "whose records", "error, MPa", "log density"]
    title = f"Strength of {len(y)} mixtures held out (sd {unit * y.std():.1f} MPa)"
    tables.console().print(tables.grid(heads, rows, title, ("model", "whose records")), crop=False)
    if args.plot:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
