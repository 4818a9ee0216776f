"""Measures how much curvature a noisy sum of curvatures supports. NumPy alone."""

import math

import numpy as np

__all__ = ["supported_curvature"]

# How wide correlations may spread around 0: the candidates of which the prior is mixed.
_SPREADS = np.append(0.0, 2.0 ** np.arange(-6.0, 1.0))
# Entries that each candidate counts beforehand, so that a few entries do not settle the mixture.
_BEFOREHAND = 0.2
_STEPS = 100
# The uncertainty of correlations counts twice: what follows stops at its second order.
_DOUBT = 2.0
# A trace of less than so many sds of its noise is no sign that there is any curvature.
_SEEN = 3.0
# Smaller numbers count as this.
_LEAST = 1e-300


def supported_curvature(
    curvature: np.ndarray, sd: float, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns axes V and, along each, the curvature that a report may count on.

    Where H is uncertain, so is how wide a posterior of precision H + J is, and its expected covariance is
    wider than (E[H] + J)⁻¹. In five steps:

    - If the trace of H is less than 3 sds of its own noise, u√D, nothing is counted on: chance leaves half
      of the diagonal above 0.
    - The diagonal of H is what was seen, d, and not below 0. It errs by u.
    - A correlation, H_ij / √(d_i d_j), errs by u/√(2 d_i d_j). Its prior is a mixture of normal laws around
      0 whose weights are fitted to all correlations together. So they shrink together where columns are
      hardly correlated, and stay where many are (``_shrunk``).
    - A, with eigenvectors V and eigenvalues a, holds these means; E holds what is left: independent errors
      whose variances, in the axes V, are t_kl. No entry of a curvature is larger than the root of the
      product of its two diagonal entries, so t_kl counts as t_kl·a_k a_l / (t_kl + a_k a_l).
    - To second order in E, E[(A + E + J)⁻¹] has along k the inverse of a_k + j_k − S_k, where
      S_k = Σ_l t_kl / (a_l + j_l). Beyond it, and twice as careful: a_k counts as a_k² / (a_k + 2 S_k).

    Args:
      curvature: H, [D, D], with noise; symmetric.
      sd: u, of the noise in a coordinate of svec(H): in a diagonal entry, and × 1/√2 in others; above 0.
      precision: J, of the prior, [D, D].

    Returns:
      V, [D, D], columns; the curvature along each, at least 0, [D].

    Source: Stephens (2017), False discovery rates: a new deal, Biostatistics 18(2), for the mixture.
    """
    size = len(curvature)
    if np.trace(curvature) < _SEEN * sd * math.sqrt(size):
        return np.eye(size), np.zeros(size)
    rows, columns = np.tril_indices(size, -1)
    diagonal = np.maximum(np.diagonal(curvature), 0.0)
    length = np.sqrt(np.maximum(diagonal, sd))
    # Of a column that noise hides, u stands for the curvature that nobody knows.
    scale = length[rows] * length[columns]
    correlation, variance = _shrunk(curvature[rows, columns] / scale, sd / (math.sqrt(2.0) * scale))
    most = np.sqrt(diagonal[rows] * diagonal[columns])
    likely, open_ = np.diag(diagonal), sd**2 * np.eye(size)
    likely[rows, columns] = likely[columns, rows] = np.clip(correlation, -1.0, 1.0) * most
    open_[rows, columns] = open_[columns, rows] = np.minimum(variance, 1.0) * most**2
    values, vectors = np.linalg.eigh(likely)
    values = np.maximum(values, 0.0)
    squares = vectors**2
    errors, products = squares.T @ open_ @ squares, np.outer(values, values)
    errors = errors * products / np.maximum(errors + products, _LEAST)
    pulled = np.einsum("dk,de,ek->k", vectors, precision, vectors)
    lost = (errors / np.maximum(values + pulled, _LEAST)).sum(axis=1)
    return vectors, values**2 / np.maximum(values + _DOUBT * lost, _LEAST)


def _shrunk(seen: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns means and variances of correlations, given what was seen of them with noise.

    Each is N(0, τ²) with a τ of ``_SPREADS``; how common each τ is, is fitted by expectation maximisation.

    Args:
      seen: [K].
      sd: of the noise, [K].
    """
    variances = _SPREADS**2 + sd[:, None] ** 2
    logs = -0.5 * seen[:, None] ** 2 / variances - 0.5 * np.log(variances)
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights = np.full(len(_SPREADS), 1.0 / len(_SPREADS))
    for _ in range(_STEPS):
        shares = likelihood * weights
        weights = (shares / shares.sum(axis=1, keepdims=True)).sum(axis=0) + _BEFOREHAND
        weights /= weights.sum()
    shares = likelihood * weights
    shares /= shares.sum(axis=1, keepdims=True)
    kept = _SPREADS**2 / variances
    mean = (shares * kept).sum(axis=1) * seen
    square = (shares * (kept * sd[:, None] ** 2 + (kept * seen[:, None]) ** 2)).sum(axis=1)
    return mean, square - mean**2
