"""The posterior that noisy gradients and curvatures leave: NumPy alone, since servers run it."""

import math
from typing import Any

import numpy as np

from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference.base import Standing
from fedvi.typing import Eta

__all__ = ["noise_aware"]

# Averages weigh the t-th of T posteriors by about t²: early ones, far from the end, hardly count, and
# the noise is 9/5 of that of equal weights.
_EMPHASIS = 2.0


def noise_aware(
    family: Any,
    prior: Eta,
    posterior: Eta,
    before: Standing | None,
    answered: int,
    share: float,
    *,
    gradient_sd: float,
    curvature_sd: float,
    floor: float,
) -> Standing:
    """Turns prior + Σ fresh sites, each with noise, into the q that goes out and the one that is reported.

    A site is (G + H m, H): gradient and curvature of a client's log likelihood at the broadcast mean m,
    both with Gaussian noise. With ``answered`` clients the sums have noise of sd
    s = gradient_sd·√answered in a coordinate, and u = curvature_sd·√answered in one of svec(H).

    - *Curvature*: the mean H̄ of ΣH over folds, recent ones weighing more. Noise alone has eigenvalues
      up to e = u'·√(2D), with u' what is left of u in the mean (the edge of Wigner's semicircle); an
      eigenvalue λ above it becomes √(λ² − e²), what lies below is flattened to its mean, which the
      trace still tells. The sum is cleaned, never a site: cleaning each would invent precision.
    - *Step*: m ← m + (J_0 + Ĥ)⁻¹ · (gradient of the posterior at m), where Ĥ is H̄ with eigenvalues
      raised to e, since what lies below the edge may be as steep as that and too long a step diverges,
      and to κ·s·√D, which keeps the noise of one step below 1/κ in norm.
    - *Report*: the mean of the steps, whose gradient noise is s', and the precision
      J_0 + H̄ (H̄ + s'²I)⁻¹ H̄. For that is what the mean gradient tells: it is H̄ (θ − m), with a
      covariance of H̄ from the records and of s'²I from the noise. Where H̄ is large this is
      J_0 + H̄, widened by the noise, (J_0 + H̄)⁻¹ + s'² H̄⁻², to first order; where noise drowns it,
      the prior remains.

    All of it is post-processing of what was released.

    Args:
      family: full Gaussian.
      prior: what is known without noise: η_0, and the prior's own factor where there is one.
      posterior: prior + Σ sites.
      before: what this returned at the fold before; None at the first.
      answered: how many clients have a site.
      share: which part of them was renewed by this fold, in (0, 1].
      gradient_sd: of one site, in each coordinate.
      curvature_sd: of one site, in each coordinate of svec(H): off-diagonal entries × √2.
      floor: κ.

    Source: specs/pvi.md §2.5 (site release, preconditioner floor) and its amendments (sum first, project
    once; widening); the shrinkage of eigenvalues is Gavish and Donoho (2017), arXiv:1405.7511, for the
    Frobenius norm, here of a symmetric matrix; averaging is Shamir and Zhang (2013), arXiv:1212.1824.
    """
    size, noise = family.size, math.sqrt(answered)
    centre = family.moments(prior if before is None else before.handed_out)[0]
    folds = 1 if before is None else before.folds + 1
    # Without noise there is nothing to average out, and the newest is the best.
    weight = 1.0 if gradient_sd == 0.0 else (_EMPHASIS + 1.0) / (folds + _EMPHASIS)
    sites = tree.subtract(posterior, prior)
    curvature, average, squares = sites.J, np.zeros(size), weight**2
    if before is not None:
        curvature = before.curvature.J + weight * (sites.J - before.curvature.J)
        average = family.moments(before.reported)[0]
        squares += (1.0 - weight) ** 2 * before.squares
    # A site that is not renewed stands in successive folds, which average it no further.
    left = min(1.0, squares / share)
    values, vectors = np.linalg.eigh(curvature)
    edge = curvature_sd * noise * math.sqrt(left) * math.sqrt(2.0 * size)
    above = values > edge
    kept = np.where(above, np.sqrt(np.maximum(values**2 - edge**2, 0.0)), 0.0)
    below = np.clip((values.sum() - kept.sum()) / max(1, (~above).sum()), 0.0, edge)

    def with_eigenvalues(found: np.ndarray) -> np.ndarray:
        whole = prior.J + (vectors * found) @ vectors.T
        return (whole + whole.T) / 2.0

    least = floor * gradient_sd * noise * math.sqrt(size)
    slope = posterior.h - posterior.J @ centre
    steep = np.maximum(values, max(edge, least))
    mean = centre + np.linalg.solve(with_eigenvalues(steep), slope)
    average = average + weight * (mean - average)
    told = np.maximum(kept, below)
    drowned = left * (gradient_sd * noise) ** 2
    precision = with_eigenvalues(told**2 / np.maximum(told + drowned, 1e-300))
    return Standing(
        handed_out=GaussianEta(precision @ mean, precision),
        reported=GaussianEta(precision @ average, precision),
        curvature=GaussianEta(np.zeros(size), curvature),
        folds=folds,
        squares=squares,
    )
