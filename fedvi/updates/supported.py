"""Measures how much curvature a noisy sum supports, given what is known of it. NumPy alone."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fedvi.updates.coordinates import Coordinates

__all__ = ["Vanishing", "supported_curvature", "vanishing_forms"]

# The candidate sds τ of correlations around 0, whose mixture is the prior.
_SPREADS = np.append(0.0, 2.0 ** np.arange(-6.0, 1.0))
# Pseudo-count of each candidate, so that a few entries do not determine the mixture.
_BEFOREHAND = 0.2
_STEPS = 100
# The uncertainty of correlations counts double, since the expansion stops at second order.
_DOUBT = 2.0
# A trace below this many sds of its noise is no evidence of any curvature.
_SEEN = 3.0
# Lower bound of denominators.
_LEAST = 1e-300


class Vanishing(NamedTuple):
    """Products of linear forms of a row that are 0 in every record: (p_k · x)(q_k · x) = 0.

    For a regression's curvature H = Σ w x xᵀ it implies p_kᵀ H q_k = 0, for all w and records.

    Attributes:
      left, right: p and q, [K, D] both, in the coordinates of H.
    """

    left: np.ndarray
    right: np.ndarray

    def fitted(self, curvature: np.ndarray) -> np.ndarray:
        """Projects H, in Frobenius norm, onto the matrices with all p_kᵀ H q_k = 0: [D, D].

        Noise that is the same in all coordinates of svec(H) loses its components orthogonal to these
        matrices.
        """
        off = ((self.left @ curvature) * self.right).sum(axis=1)
        root = _structure(*map(_bytes, self), len(curvature))[0]
        off = scipy.linalg.cho_solve((root, True), off, check_finite=False)
        taken = (self.left * off[:, None]).T @ self.right
        return np.asarray(curvature - (taken + taken.T) / 2.0)

    def left_over(self, size: int) -> np.ndarray:
        """Returns the share of noise variance that ``fitted`` leaves in each coordinate of svec, [D, D]."""
        return _structure(*map(_bytes, self), size)[1]


def vanishing_forms(
    vanishing: Sequence[Sequence[int]], size: int, at: Coordinates | None
) -> Vanishing | None:
    """Returns the forms of columns with x_i (x_j − x_c) = 0; None if there are no such columns.

    Args:
      vanishing: (i, j, c) of each. Two levels of a factor have x_i x_j = 0, written with c = −1. A column
        of 0 and 1 has x_i (x_i − x_c) = 0, with c the constant column.
      size: D.
      at: the coordinates of H; None for those of x itself.
    """
    if not len(vanishing):
        return None
    back = np.eye(size) if at is None else at.columns_back(np.eye(size))
    first, second, constant = np.asarray(vanishing).T
    left, right = (
        back[first],
        back[second] - np.where(constant < 0, 0.0, 1.0)[:, None] * back[constant],
    )
    return Vanishing(
        *(form / np.linalg.norm(form, axis=1, keepdims=True) for form in (left, right))
    )


def _bytes(forms: np.ndarray) -> bytes:
    return np.ascontiguousarray(forms, np.float64).tobytes()


# Cached, since it is the same at every fold once there are coordinates.
@functools.lru_cache(maxsize=4)
def _structure(first: bytes, second: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the Cholesky root of the inner products of sym(p qᵀ), [K, K], and the shares, [D, D]."""
    left, right = (np.frombuffer(part).reshape(-1, size) for part in (first, second))
    across = left @ right.T
    gram = ((left @ left.T) * (right @ right.T) + across * across.T) / 2.0
    root = np.linalg.cholesky(gram)
    # The coordinates (i, j) of svec that any form has: few, of the D (D + 1) / 2.
    touched = (left != 0.0).T.astype(np.float64) @ (right != 0.0)
    rows, columns = np.nonzero(np.tril(touched + touched.T))
    entries = (left[:, rows] * right[:, columns] + right[:, rows] * left[:, columns]) / 2.0
    entries = scipy.linalg.solve_triangular(root, entries, lower=True, check_finite=False)
    # Off-diagonal entries × √2, so squares count twice.
    taken = np.where(rows == columns, 1.0, 2.0) * np.einsum("kn,kn->n", entries, entries)
    shares = np.ones((size, size))
    shares[rows, columns] = shares[columns, rows] = np.maximum(1.0 - taken, 0.0)
    return root, shares


def supported_curvature(
    curvature: np.ndarray, sd: float | np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns axes V and, along each, the curvature that a report may rely on.

    If H is uncertain, the expected covariance of a posterior with precision H + J is wider than
    (E[H] + J)⁻¹. This is done in five steps:

    - If the trace of H is less than 3 sds of its own noise, u√D, no curvature is supported: by chance half
      of the diagonal is above 0.
    - The diagonal of H is the observed d, but not below 0. Its error is u.
    - A correlation, H_ij / √(d_i d_j), has the error u/√(2 d_i d_j). Its prior is a mixture of normal laws
      around 0 whose weights are fitted to all correlations together. So correlations shrink together if
      columns are hardly correlated, and stay if many are (``_shrunk``).
    - A, with eigenvectors V and eigenvalues a, holds these means. E holds independent errors, whose
      variances in the axes V are t_kl. No entry of a curvature exceeds the root of the product of its two
      diagonal entries, so t_kl counts as t_kl·a_k a_l / (t_kl + a_k a_l).
    - To second order in E, E[(A + E + J)⁻¹] has along k the inverse of a_k + j_k − S_k, where
      S_k = Σ_l t_kl / (a_l + j_l). To cover higher orders, and to be twice as careful, a_k counts as
      a_k² / (a_k + 2 S_k).

    Args:
      curvature: H, [D, D], with noise; symmetric.
      sd: u, of the noise in a coordinate of svec(H), which is that of a diagonal entry; other entries have
        u/√2. Above 0; or [D, D] and at least 0, if coordinates differ.
      precision: J, of the prior, [D, D].

    Returns:
      V, [D, D], columns; the curvature along each, at least 0, [D].

    Source: Stephens (2017), False discovery rates: a new deal, Biostatistics 18(2), for the mixture.
    """
    size = len(curvature)
    sds = np.maximum(np.broadcast_to(sd, (size, size)), _LEAST)
    if np.trace(curvature) < _SEEN * np.linalg.norm(np.diagonal(sds)):
        return np.eye(size), np.zeros(size)
    rows, columns = np.tril_indices(size, -1)
    diagonal = np.maximum(np.diagonal(curvature), 0.0)
    length = np.sqrt(np.maximum(diagonal, np.diagonal(sds)))
    # If noise hides a column, u stands for its unknown curvature.
    scale = length[rows] * length[columns]
    correlation, variance = _shrunk(
        curvature[rows, columns] / scale, sds[rows, columns] / (math.sqrt(2.0) * scale)
    )
    most = np.sqrt(diagonal[rows] * diagonal[columns])
    likely, open_ = np.diag(diagonal), np.diag(np.diagonal(sds) ** 2)
    likely[rows, columns] = likely[columns, rows] = np.clip(correlation, -1.0, 1.0) * most
    open_[rows, columns] = open_[columns, rows] = np.minimum(variance, 1.0) * most**2
    values, vectors = np.linalg.eigh(likely)
    values = np.maximum(values, 0.0)
    squares = vectors**2
    errors, products = squares.T @ open_ @ squares, np.outer(values, values)
    errors = errors * products / np.maximum(errors + products, _LEAST)
    pulled = (vectors * (precision @ vectors)).sum(axis=0)
    lost = (errors / np.maximum(values + pulled, _LEAST)).sum(axis=1)
    return vectors, values**2 / np.maximum(values + _DOUBT * lost, _LEAST)


def _shrunk(seen: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns posterior means and variances of correlations, given noisy observations.

    Each is N(0, τ²) with a τ from ``_SPREADS``; expectation maximisation fits how common each τ is.

    Args:
      seen: the observations, [K].
      sd: of the noise, [K].
    """
    variances = _SPREADS**2 + sd[:, None] ** 2
    logs = -0.5 * seen[:, None] ** 2 / variances - 0.5 * np.log(variances)
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights = np.full(len(_SPREADS), 1.0 / len(_SPREADS))
    for _ in range(_STEPS):
        weights = weights * ((1.0 / (likelihood @ weights)) @ likelihood) + _BEFOREHAND
        weights /= weights.sum()
    shares = likelihood * weights
    shares /= shares.sum(axis=1, keepdims=True)
    kept = _SPREADS**2 / variances
    mean = (shares * kept).sum(axis=1) * seen
    square = (shares * (kept * sd[:, None] ** 2 + (kept * seen[:, None]) ** 2)).sum(axis=1)
    return mean, square - mean**2
