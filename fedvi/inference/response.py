"""Infers the posterior of θ from noised gradients at known points; makes the intervals of `DPSVI`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.updates import noise_aware

__all__ = ["Sums", "Told", "added", "nothing", "told"]

# Where noise hides a curvature, an estimate l counts as l²/(l + 2 sds), and at most as l − 1.5 sds: as 0
# where columns may be collinear.
_DOUBT, _UNSURE = 2.0, 1.5
# An eigenvalue this many sds below the spectrum of noise means that the log likelihood is not concave.
_RARE = 3.0
# Prior, mean and noise depend on each other; they converge in a few passes.
_PASSES = 4


class Sums(NamedTuple):
    """Weighted sums over steps of (place, gradient); step t has weight t.

    Attributes:
      weight, squares: Σw and Σw².
      mean: Σ w·(place, gradient) / Σw, [2D].
      scatter: Σ w·dd' with d the difference from the mean, [2D, 2D].
    """

    weight: Any
    squares: Any
    mean: Any
    scatter: Any


class Told(NamedTuple):
    """A noise-aware Gaussian for θ.

    Attributes:
      mean, covariance: [D] and [D, D].
      hidden: in how many directions noise hides the curvature, so that the prior dominates.
    """

    mean: np.ndarray
    covariance: np.ndarray
    hidden: int


def nothing(size: int) -> Sums:
    """Returns the sums over no steps, of D = ``size``."""
    return Sums(jnp.zeros(()), jnp.zeros(()), jnp.zeros(2 * size), jnp.zeros((2 * size, 2 * size)))


def added(sums: Sums, step: Any, places: Any, gradients: Any) -> Sums:
    """Adds steps ``step``, ``step`` + 1, …, with one matrix product for all of them.

    Leaves out steps whose gradient is not finite, as ``stable_update`` does.

    Args:
      sums: those so far.
      step: the number of the first step, from 0.
      places, gradients: [steps, D] both.
    """
    rows = jnp.concatenate([places, gradients], axis=1)
    is_finite = jnp.isfinite(rows).all(axis=1)
    rows = jnp.where(is_finite[:, None], rows, 0.0)
    numbers = step + 1 + jnp.arange(rows.shape[0])
    weights = jnp.where(is_finite, numbers, 0).astype(rows.dtype)
    weight, total = weights.sum(), sums.weight + weights.sum()
    mean = weights @ rows / jnp.maximum(weight, 1.0)
    away, off = rows - mean[None], mean - sums.mean
    share = weight / jnp.maximum(total, 1.0)
    scatter = sums.scatter + (away * weights[:, None]).T @ away
    scatter = scatter + sums.weight * share * jnp.outer(off, off)
    squares = sums.squares + (weights**2).sum()
    return Sums(total, squares, sums.mean + share * off, scatter)


def told(sums: Sums, noise_sd: float, prior: Callable[[np.ndarray], Any]) -> Told:
    """Returns the posterior of θ given noised gradients of its log likelihood.

    Step t released g_t = s − H(θ_t − a) + e_t, where θ_t is public, s is the gradient of the log likelihood
    at the mean place a, H is its curvature, and e_t is Gaussian noise of sd ``noise_sd`` plus the variation
    between batches. This is a linear regression with known regressors, whatever the optimiser did, and
    post-processing of what was released: docs/proofs/descent_noise.md derives it.

    - *Noise*: R, the covariance of residuals, has no eigenvalue below the square of ``noise_sd``.
    - *Curvature*: H is the symmetric least-squares solution. In coordinates in which R is ρI and places
      have scatter S = U diag(s) U', it has entries −(A_ij + A_ji) / (s_i + s_j), where A is the scatter of
      gradients with places. Multiplied by s^¼ on both sides, diagonal entries have errors of sd √ρ, and
      others less. So noise alone has eigenvalues up to e = √(2Dρ). Above e, λ becomes √(λ² − e²). Below, l
      is estimated from the spectrum (``noise_aware``), and counts as l²/(l + 2√ρ), and at most as
      l − 1.5√ρ: as 0 where columns may be collinear.
    - *θ*: the score at θ is s − H(θ − a), itself of variance H at the truth; so s + Ha is an observation of
      Hθ with covariance H + R̄, and the precision of θ is J₀ + H(H + R̄)⁻¹H. Intervals cover both the true
      θ and the posterior mean of the pooled records. R̄ is R·(1/n + d'S⁻¹d + tr S⁻¹Σ): as in any
      regression, the noise of H matters more the further θ is from a. The distance has the mean d and the
      covariance Σ, taken before doubtful curvature is lowered.

    Assumptions: the log likelihood is about quadratic where the later places are; and clipping leaves
    the mean gradient as it is. The effect of clipping shows in no release, and so not in the result.

    Args:
      sums: those over all steps.
      noise_sd: a lower bound on the noise sd of each coordinate of each gradient.
      prior: θ → (gradient, precision) of its log density there: [D] and [D, D].

    Raises:
      SolverError: where there is no honest answer, with the reason.

    Source: docs/proofs/noise_aware.md for the cleaning of eigenvalues; Bernstein and Sheldon (2019),
    arXiv:1910.13153, for posteriors that account for the noise of released sums.
    """
    weight, squares, mean, scatter = (np.asarray(part, float) for part in sums)
    size = len(mean) // 2
    if not np.isfinite(scatter).all():
        raise errors.SolverError("gradients that were released are not finite")
    count = 0.0 if weight == 0.0 else float(weight**2 / squares)
    if count < 2.0 * (size + 2):
        raise errors.SolverError(
            f"steps count as {count:.0f}, expected at least {2 * (size + 2)} for {size} latents",
            "the t-th step weighs t, so that T steps count as ¾ T: take more of them",
        )
    place, gradient = mean[:size], mean[size:]
    scatter = scatter * (count / weight)
    spread, cross, noise = scatter[:size, :size], scatter[size:, :size], scatter[size:, size:]
    spread = spread + 1e-9 * np.trace(spread) / size * np.eye(size)
    inverse = np.linalg.inv(spread)
    residual = (noise - cross @ inverse @ cross.T) / (count - size - 1.0)
    values, vectors = np.linalg.eigh((residual + residual.T) / 2.0)
    # Without noise and batches, residuals are only rounding errors.
    least = max(noise_sd**2, 1e-9 * float(np.trace(noise)) / (size * count), 1e-30)
    values = np.maximum(values, least)
    covariance = (vectors * values) @ vectors.T
    curvature, likely, hidden = _curvature(spread, cross, values, vectors)

    def given(curvature: np.ndarray, error: np.ndarray, at: np.ndarray) -> Any:
        slope, precision = (np.asarray(part, float) for part in prior(at))
        if np.linalg.eigvalsh(precision)[0] <= 0.0:
            raise errors.SolverError("the prior is not log-concave where the descent ended")
        pull = curvature @ np.linalg.inv(curvature + error)
        found = np.linalg.inv(_symmetric(precision + pull @ curvature))
        seen = gradient + curvature @ place
        return found @ (slope + precision @ at + pull @ seen), found

    at, error = place, covariance / count
    for _ in range(_PASSES):
        wide = given(likely, covariance / count, at)[1]
        at, found = given(curvature, error, at)
        away = at - place
        error = covariance * (1.0 / count + away @ inverse @ away + np.trace(inverse @ wide))
    at, found = given(curvature, error, at)
    return Told(at, _symmetric(found), hidden)


def _curvature(
    spread: np.ndarray, cross: np.ndarray, values: np.ndarray, vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the cautious curvature, the likely one, and in how many directions noise hides it.

    Args:
      spread: scatter of places.
      cross: scatter of gradients with places.
      values, vectors: of the covariance R of a gradient's noise.
    """
    size = len(values)
    level = float(np.exp(np.log(values).mean()))
    whiten = vectors * np.sqrt(level / values)
    back = (vectors * np.sqrt(values / level)).T
    lengths, axes = np.linalg.eigh(back @ spread @ back.T)
    lengths = np.maximum(lengths, 1e-9 * lengths[-1])
    slopes = -axes.T @ whiten.T @ cross @ back.T @ axes
    quarter = lengths**0.25
    scaled = (slopes + slopes.T) / (lengths[:, None] + lengths[None, :])
    found, turned = np.linalg.eigh(quarter[:, None] * scaled * quarter[None, :])
    sd = float(np.sqrt(level))
    edge = sd * np.sqrt(2.0 * size)
    if found[0] < -edge - _RARE * sd:
        raise errors.SolverError(
            "the log likelihood is not concave where the descent went: no Gaussian fits the posterior"
        )
    below = np.clip(noise_aware.hidden_values(found, sd), 0.0, edge)
    is_seen = found > edge
    likely = np.where(is_seen, np.sqrt(np.maximum(found**2 - edge**2, 0.0)), below)
    doubted = np.minimum(below**2 / (below + _DOUBT * sd), np.maximum(below - _UNSURE * sd, 0.0))
    told = np.where(is_seen, likely, doubted)
    out = (axes / quarter).T @ back

    def rebuilt(found: np.ndarray) -> np.ndarray:
        return _symmetric(out.T @ (turned * found) @ turned.T @ out)

    return rebuilt(told), rebuilt(likely), int((~is_seen).sum())


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2.0
