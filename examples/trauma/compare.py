"""One visit or several: partitioned variational inference against one-shot BFI on the trauma data.

    python examples/trauma/compare.py
    python examples/trauma/compare.py --rounds 1 2 3

Bayesian federated inference (BFI) asks each hospital once, for the mode of its own posterior and the
curvature there, and combines these. `fedvi` can stop after one visit, too, or go on. Printed are the
means of the coefficients, and how each answer compares with the fit to all records pooled: its intervals'
widths as a multiple of the pooled ones (the median), the largest distance of a mean in pooled sds, and the
Kullback-Leibler divergence in nats.
"""

import argparse
from pathlib import Path

import numpy as np

import fedvi
from fedvi.expfam.gaussian import GaussianEta
from fedvi.report import tables
from fedvi.run import loading
from fedvi.study import build

HERE = Path(__file__).resolve().parent


def mode(x, y, precision):
    """Climbs to the mode of log p(y | x, θ) − precision ‖θ‖² / 2, by Newton's method.

    Args:
      x: [n, D], y: [n], 0 or 1.
      precision: of the prior N(0, I / precision).

    Returns:
      θ̂ [D] and A = XᵀWX + precision · I [D, D], the curvature there.
    """
    theta = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-x @ theta))
        curvature = (x.T * (p * (1.0 - p))) @ x + precision * np.eye(len(theta))
        step = np.linalg.solve(curvature, x.T @ (y - p) - precision * theta)
        # A hospital of 49 patients is nearly separable: long steps overshoot.
        theta = theta + step * min(1.0, 2.0 / np.linalg.norm(step))
        if np.linalg.norm(step) < 1e-12:
            return theta, curvature
    raise SystemExit("Newton's method did not converge: are the outcomes separable?")


def bfi(shards, precision):
    """Combines the hospitals' own modes: A = Σ Aₗ + Λ − Σ Λₗ, θ̂ = A⁻¹ Σ Aₗ θ̂ₗ.

    Every hospital counts the same prior, Λₗ = Λ = precision · I, so that all but one are taken off.

    Source: Jonker, Pazira and Coolen (2024), Bayesian federated inference for estimating statistical
    models based on non-shared multicenter data sets, Statistics in Medicine 43 (12).
    """
    h, total = 0.0, precision * np.eye(shards[0][0].shape[1])
    for x, y in shards:
        theta, curvature = mode(x, y, precision)
        h = h + curvature @ theta
        total = total + curvature - precision * np.eye(len(theta))
    return GaussianEta(h=h, J=total)


def visited(study, kind, rounds):
    """Runs the study's federation for so many rounds."""
    schedule = study.schedule.model_copy(update={"kind": kind, "rounds": rounds})
    return fedvi.simulate(study.model_copy(update={"schedule": schedule}), HERE, pooled=True)


def main():
    """Fits and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        nargs="+",
        default=[1, 2],
        help="how often fedvi visits each hospital (default 1 2)",
    )
    args = parser.parse_args()

    study = fedvi.load_study(HERE / "study.toml")
    assembly = build.assemble(study)
    family = assembly.family
    sources = loading.load_shards(assembly, HERE)
    shards = [(sources[name].records["x"], sources[name].records["y"]) for name in assembly.clients]
    shards = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in shards]
    precision = study.prior.scale**-2

    answers, pooled = {}, None
    answers["BFI"] = bfi(shards, precision)
    for kind in ("synchronous", "sequential"):
        for rounds in args.rounds:
            result = visited(study, kind, rounds)
            pooled = result.pooled
            answers[f"{kind} × {rounds}"] = result.posterior
    theta, curvature = mode(*map(np.concatenate, zip(*shards, strict=True)), precision)
    answers["pooled mode"] = GaussianEta(h=curvature @ theta, J=curvature)
    answers["pooled"] = pooled

    rows = []
    target, sd = family.moments(pooled)
    for name, eta in answers.items():
        mean, spread = family.moments(eta)
        rows.append(
            [
                name,
                *(f"{value:.3f}" for value in mean),
                f"{np.median(spread / sd):.2f}",
                f"{np.abs((mean - target) / sd).max():.3f}",
                f"{max(float(family.kl(eta, pooled)), 0.0):.2g}",
            ]
        )
    heads = ["answer", *assembly.model.names, "width", "off by", "KL"]
    title = "Means of coefficients, and how far each answer is from the fit to all records pooled"
    tables.console().print(tables.grid(heads, rows, title, ("answer",)), crop=False)


if __name__ == "__main__":
    main()
