"""How fast partitioned variational inference comes to the pooled optimum, where local optima are exact.

NumPy alone, no code of fedvi: what a federation does is held against it. Breast cancer, 455 of 569 rows as
the file has them, 30 standardised covariates and an intercept; logistic regression, full covariance,
prior N(0, I); KL(q_r || q*) after r rounds.

    python -m evidence.local_optima               # two, five and ten clients, all at once; ten in turn
"""

import csv
import itertools
import sys
from pathlib import Path

import numpy as np

FILE = Path(__file__).resolve().parent.parent.parent / (
    "shared/data/breast-cancer-wisconsin/wdbc.data"
)
ROWS, NODES, ROUNDS, LEAST = 455, 64, 5, 1e-9


def shares(clients: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns x [n, 31] and y [n] of each client."""
    with FILE.open() as file:
        rows = [row for row in csv.reader(file) if len(row) == 32]
    x = np.array([row[2:] for row in rows], dtype=float)
    x = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))])[:ROWS]
    y = np.array([row[1] == "B" for row in rows], dtype=float)[:ROWS]
    client = np.arange(ROWS) * clients // ROWS
    return [(x[client == index], y[client == index]) for index in range(clients)]


def optimum(x, y, h, j, mean, precision):
    """Returns mean and precision of the local optimum at the cavity (h, j), and how far it was missed.

    Natural-gradient steps, halved until the objective does not fall.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()

    def evaluate(mean, precision):
        try:
            root = np.linalg.cholesky(precision)
        except np.linalg.LinAlgError:
            return None
        covariance = np.linalg.inv(precision)
        spread = np.sqrt(((x @ covariance) * x).sum(axis=1))
        predictor = (x @ mean)[:, None] + spread[:, None] * nodes
        share = 1.0 / (1.0 + np.exp(-predictor))
        fit = -np.logaddexp(0.0, np.where(y[:, None] == 1.0, -predictor, predictor)) @ weights
        objective = fit.sum() + h @ mean - 0.5 * (mean @ j @ mean + (j * covariance).sum())
        gradient = x.T @ (y - share @ weights) + h - j @ mean
        curvature = (x * ((share * (1.0 - share)) @ weights)[:, None]).T @ x
        return objective - np.log(np.diag(root)).sum(), gradient, j + curvature, covariance

    here, step = evaluate(mean, precision), 1.0
    for _ in itertools.repeat(None, 2_000):
        objective, gradient, target, covariance = here
        whole = np.linalg.eigvalsh(target)[0] > 0.0
        move = np.linalg.solve(target, gradient) if whole else covariance @ gradient
        change = target - precision
        left = np.sqrt(
            move @ precision @ move + 0.5 * ((covariance @ change @ covariance) * change).sum()
        )
        if left < LEAST:
            break
        while step > 1e-12:
            there = evaluate(mean + step * move, precision + step * change)
            if there is not None and there[0] >= objective - 1e-12 * (1.0 + abs(objective)):
                break
            step /= 2.0
        else:
            break
        mean, precision, here = mean + step * move, precision + step * change, there
        step = min(1.0, 2.0 * step)
    return mean, precision, left


def divergence(mean, precision, other, sharpness) -> float:
    """Returns KL(N(mean, precision⁻¹) || N(other, sharpness⁻¹))."""
    covariance, shift = np.linalg.inv(precision), other - mean
    ratio = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(sharpness)[1]
    trace = (sharpness * covariance).sum()
    return float(0.5 * (trace - len(mean) + shift @ sharpness @ shift + ratio))


def trajectory(parts, in_turn: bool) -> tuple[list[float], float]:
    """Returns the divergence after each round, undamped, and the largest miss after the first."""
    size = parts[0][0].shape[1]
    prior = np.zeros(size), np.eye(size)
    pooled = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    best = optimum(*pooled, *prior, np.zeros(size), np.eye(size))[:2]
    factors = [(np.zeros(size), np.zeros((size, size))) for _ in parts]
    found, worst = [], 0.0
    for turn in range(ROUNDS):
        standing, h, j = list(factors), *prior
        for index, (x, y) in enumerate(parts):
            if in_turn or index == 0:
                h = prior[0] + sum(factor[0] for factor in factors)
                j = prior[1] + sum(factor[1] for factor in factors)
            own = factors[index]
            mean, precision, left = optimum(x, y, h - own[0], j - own[1], np.linalg.solve(j, h), j)
            worst = max(worst, left) if turn else worst
            standing[index] = precision @ mean - h + own[0], precision - j + own[1]
            if in_turn:
                factors[index] = standing[index]
        factors = standing
        h = prior[0] + sum(factor[0] for factor in factors)
        j = prior[1] + sum(factor[1] for factor in factors)
        found.append(divergence(np.linalg.solve(j, h), j, *best))
    return found, worst


def main() -> int:
    """Prints a line for each federation."""
    for clients, in_turn in ((2, False), (5, False), (10, False), (10, True)):
        found, worst = trajectory(shares(clients), in_turn)
        print(
            f"{clients} clients, {'sequential' if in_turn else 'synchronous'}: KL after each round "
            f"{', '.join(f'{value:.2g}' for value in found)}; local optima to {worst:.0e} sd",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
