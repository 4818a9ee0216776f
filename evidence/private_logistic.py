"""Private logistic regression, one data holder: AUC of `vips` beside the papers' own recipe.

    python -m evidence.private_logistic --table breast-cancer --splits 5 --delta 1e-4
    python -m evidence.private_logistic --table adult --seeds 10
    python -m evidence.private_logistic --table readmission --sampled     # Poisson batches, too
    python -m evidence.private_logistic --table adult --validate --ridge 0.25
    python -m evidence.private_logistic --table adult --set-up            # and diffprivlib's figures

All columns make the same promise: (epsilon, delta) for add_remove on records, priced by PLD, whoever sees
every release. Columns are scaled by public bounds and levels (`private_tables.py`), the prior is N(0, 1).
`--validate` scores a fifth of the training records and not the test set: settings are chosen there.

Columns: *papers*: each round both statistics are released by themselves, 2J Gaussian releases, noise for
twice the sensitivity, alike in all entries of a mirrored triangle, and the last round counts (J = 10).
*averaged*: the same, but for running means. *joint*: one release a round, weighed and clipped jointly, √2
less noise off the diagonal, a ridge of half the noise's edge. *gradients*: `vips` as it is.
"""

import argparse
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import fedvi
import numpy as np
import scipy.stats
from benchmarks import rivals
from fedvi import models, privacy
from fedvi.models.regression_statistics import PolyaGamma

from evidence.claims.vips_logistic import PENALTIES
from evidence.private_tables import TABLES, Table

EPSILONS = (0.5, 1.0, 2.0, 4.0)
ROUNDS = {"papers": 10, "averaged": 10, "joint": 10, "gradients": 20, "sampled": 100}
RATE = 0.1


def auc(score: np.ndarray, y: np.ndarray) -> float:
    """Returns how often a positive record scores higher than a negative one."""
    ranks, positive = scipy.stats.rankdata(score), y.sum()
    return float(
        (ranks[y == 1.0].sum() - positive * (positive + 1) / 2) / (positive * (len(y) - positive))
    )


def parts(table: Table, splits: int, validate: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the rows for training and for scoring; those of a validation leave the test rows alone."""
    for seed in range(splits):
        generator = np.random.default_rng(seed)
        order = generator.permutation(len(table.y))
        cut = table.fixed or int(0.8 * len(order))
        train, test = order[:cut], order[cut:]
        if table.fixed:
            train, test = np.arange(cut), np.arange(cut, len(order))
        if validate:
            train = np.random.default_rng((seed, 1)).permutation(train)
            train, test = train[: int(0.8 * cut)], train[int(0.8 * cut) :]
        yield train, test


def by_the_papers(
    x: np.ndarray, y: np.ndarray, row_norm: float, noise: float, is_averaged: bool, seed: int
) -> np.ndarray:
    """Returns the mean of q after ten rounds of the papers' recipe, with rows shortened to their bound.

    Source: Park et al. (2016), arXiv:1611.00340, and (2020), JAIR 68: σ·2/N times the bounds on (y − ½)x
    and on E[ω]xxᵀ of rows of norm 1, here R/2 and R²/4 of sums; Dwork et al. (2014) for the triangle.
    """
    generator, size = np.random.default_rng(seed), x.shape[1]
    x = x * np.minimum(1.0, row_norm / np.linalg.norm(x, axis=1))[:, None]
    mean, covariance = np.zeros(size), np.eye(size)
    h, J = np.zeros(size), np.zeros((size, size))
    for visit in range(ROUNDS["papers"]):
        spread = ((x @ covariance) * x).sum(axis=1)
        tilt = np.maximum(np.sqrt((x @ mean) ** 2 + spread), 1e-6)
        bend = np.tanh(tilt / 2) / (2 * tilt)
        triangle = np.tril(generator.normal(size=(size, size)))
        mirrored = triangle + np.tril(triangle, -1).T
        fresh_h = x.T @ (y - 0.5) + noise * row_norm * generator.normal(size=size)
        values, vectors = np.linalg.eigh(
            (x * bend[:, None]).T @ x + noise * row_norm**2 / 2 * mirrored
        )
        fresh_J = (vectors * np.maximum(values, 0.0)) @ vectors.T
        step = 1.0 / (1.0 + visit) if is_averaged else 1.0
        h, J = h + step * (fresh_h - h), J + step * (fresh_J - J)
        covariance = np.linalg.inv(np.eye(size) + J)
        mean = covariance @ h
    return mean


def fitted(
    kind: str, table: Table, rows: np.ndarray, given: Any, epsilon: float, seed: int
) -> np.ndarray:
    """Returns the mean of q."""
    x, y = table.x[rows].astype(np.float32), table.y[rows]
    size, rounds = x.shape[1], given.rounds or ROUNDS[kind]
    if kind in ("papers", "averaged"):
        noise = planned(given, epsilon, 2 * rounds, len(y), seed).mechanism.noise_multiplier
        return by_the_papers(table.x[rows], y, table.row_norm, noise, kind == "averaged", seed)
    names = tuple(f"x{column}" for column in range(size))
    if kind == "joint":
        model: Any = PolyaGamma(names, (1.0,) * size, float(table.row_norm), ridge=given.ridge)
        settings: dict[str, Any] = {}
    else:
        model = models.logistic(names, prior_scale=1.0)
        settings = {"row_norm": float(table.row_norm), "ridge": given.ridge}
        settings |= (
            {} if given.share is None else {"shares": {"J": given.share, "h": 1 - given.share}}
        )
    rate = RATE if kind == "sampled" else None
    plan = planned(given, epsilon, rounds, len(y), seed, rate)
    fit = fedvi.VIPS(model, plan, **settings)
    return fit.run({"x": x, "y": y}, progress_bar=False).moments[0]


def planned(
    given: Any, epsilon: float, steps: int, records: int, seed: int, rate: float | None = None
) -> Any:
    """Returns the plan of so many releases, calibrated; without noise at infinite ε."""
    kind: dict[str, Any] = {"sampler": "full"} if rate is None else {"rate": rate}
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": given.delta}
    if math.isinf(epsilon):
        budget = {"noise_multiplier": 0, "clip_norm": math.inf}
    return privacy.sgd(
        steps=steps,
        max_records=records,
        relation="add_remove",
        insecure_seed=seed,
        **kind,
        **budget,
    )


def rival(table: Table, given: Any) -> None:
    """Prints the figures of diffprivlib, in an environment of its own."""
    home = rivals.CACHE / "diffprivlib"
    if given.set_up:
        rivals.set_up(given.python, ("diffprivlib",))
    if not home.exists():
        print("diffprivlib: left out, see --set-up")
        return
    train, test = zip(*parts(table, given.splits, given.validate), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "table.npz")
        np.savez(path, x=table.x, y=table.y, row_norm=table.row_norm, train=train, test=test)
        command = [
            home / "bin" / "python",
            rivals.RUNNERS / "run_diffprivlib.py",
            path,
            "3",
            PENALTIES,
        ]
        print("diffprivlib (δ = 0): ε, AUC, sd, its best C on the scored rows", flush=True)
        subprocess.run([*map(str, command), *map(str, given.epsilon)], check=True)


def main() -> None:
    """Prints mean and sd over splits and seeds of noise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=[*TABLES], default="adult")
    parser.add_argument("--kind", choices=[*ROUNDS], action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=1, help="of the noise, for each split")
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--sampled", action="store_true", help="Poisson batches, too")
    parser.add_argument("--validate", action="store_true", help="score a part of the training rows")
    parser.add_argument("--rounds", type=int, help="of the columns that are given")
    parser.add_argument("--ridge", type=float, default=0.5)
    parser.add_argument("--share", type=float, help="of the curvature in C²")
    parser.add_argument("--no-rival", action="store_true")
    parser.add_argument("--set-up", action="store_true", help="make diffprivlib's environment")
    parser.add_argument("--python", default="python3.11", help="for --set-up")
    given = parser.parse_args()
    given.epsilon = given.epsilon or list(EPSILONS)
    table = TABLES[given.table]()
    kinds = given.kind or [kind for kind in ROUNDS if kind != "sampled" or given.sampled]
    print(f"{given.table}: {table.x.shape[0]} records, D = {table.x.shape[1]}", flush=True)
    for epsilon in [*given.epsilon, math.inf]:
        for kind in kinds if math.isfinite(epsilon) else {"gradients"} & {*kinds}:
            scores = [
                auc(table.x[test] @ fitted(kind, table, train, given, epsilon, seed), table.y[test])
                for train, test in parts(table, given.splits, given.validate)
                for seed in range(1 if math.isinf(epsilon) else given.seeds)
            ]
            print(
                f"  epsilon {epsilon:g}, {kind}: AUC {np.mean(scores):.4f} ± {np.std(scores):.4f} "
                f"({len(scores)} runs)",
                flush=True,
            )
    if not given.no_rival:
        rival(table, given)


if __name__ == "__main__":
    main()
