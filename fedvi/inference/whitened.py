"""The coordinates of the gradient solvers, in which the broadcast q is standard normal.

θ = m + L z with L Lᵀ = J⁻¹ of the broadcast q, which is public. The guide is z ~ N(a, B Bᵀ), with B
lower triangular for the full family and diagonal for the diagonal one; ``parameters`` are (a, raw),
where raw is B with its diagonal in logs. q itself is (0, 0). In these coordinates a step of 0.01 is a
hundredth of a posterior sd, however sharp or flat q is.

In the low-rank family no array may be [D, D]. With s = d^−½ and s·B = QR as in ``low_rank_gaussian``, the
broadcast q has the root L = s (I − QQᵀ + QHQᵀ), H Hᵀ = M⁻¹. raw is flat, [D + r(r+1)/2]: the logs of
factors c that multiply s, and a lower triangle T, its diagonal in logs, that multiplies H:

    c·s·B = Q′R′R,   c∘Q = Q′R′,   root of the guide = c·s (I − Q′Q′ᵀ + Q′HTQ′ᵀ).

Every such root belongs to a member of the family, and every member has one. R′ᵀR′ = Qᵀ c² Q is [r, r], so
Q′ is never formed. The location is m + L a.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from fedvi.expfam.base import FactoredGaussian
from fedvi.updates.base import Task, cavity

__all__ = [
    "Frame",
    "LowRankFrame",
    "around",
    "draw",
    "frame",
    "noise_in_frame",
    "public_term",
    "pull_back",
    "scale_count",
    "single",
    "spread",
    "start",
    "thetas",
    "to_theta",
]


class Frame(NamedTuple):
    """The broadcast q's mean m [D] and root L ([D, D], or [D] for the diagonal family), and the
    cavity's (h, J) in the whitened coordinates."""

    mean: Any
    root: Any
    h: Any
    precision: Any


class LowRankFrame(NamedTuple):
    """The broadcast q of the low-rank family, and the cavity.

    Attributes:
      mean: m, [D].
      scale: s = d^−½, [D].
      q: Q [D, r], orthonormal.
      inside: H [r, r], lower triangular.
      h: Lᵀ(h − P m) of the cavity, [D].
      precision: s² d of the cavity, [D].
      within: R K Rᵀ of the cavity, [r, r].
    """

    mean: Any
    scale: Any
    q: Any
    inside: Any
    h: Any
    precision: Any
    within: Any


AnyFrame = Frame | LowRankFrame


def frame(family: Any, task: Task) -> AnyFrame:
    """Returns a task's frame, in float64 NumPy."""
    without = cavity(task)
    if isinstance(family, FactoredGaussian):
        mean = family.location(task.posterior)
        parts = family.root_parts(task.posterior)
        pull = parts.scale * (without.h - family.times(without, mean))
        along = parts.q.T @ pull
        h = pull + parts.q @ (parts.inside.T @ along - along)
        within = parts.r @ without.K @ parts.r.T
        precision = parts.scale**2 * without.d
        return LowRankFrame(mean, parts.scale, parts.q, parts.inside, h, precision, within)
    if family.correlated:
        mean, root = family.location_root(task.posterior)
        h = root.T @ (without.h - without.J @ mean)
        return Frame(mean, root, h, root.T @ without.J @ root)
    mean, root = family.moments(task.posterior)
    return Frame(mean, root, root * (without.h - without.J * mean), root * without.J * root)


def start(at: AnyFrame) -> tuple[Any, Any]:
    """Returns the parameters of the broadcast q, in the dtype of the frame: zeros."""
    if isinstance(at, LowRankFrame):
        size, rank = at.q.shape
        raw = jnp.zeros((size + rank * (rank + 1) // 2,), at.mean.dtype)
        return jnp.zeros_like(at.mean), raw
    return jnp.zeros_like(at.mean), jnp.zeros_like(at.root)


def spread(raw: Any) -> Any:
    """Returns B: lower triangular [D, D], or the diagonal [D]."""
    if raw.ndim == 1:
        return jnp.exp(raw)
    return jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw)))


def public_term(parameters: tuple[Any, Any], at: AnyFrame) -> Any:
    """Returns ⟨η_cavity, E_q[T]⟩ + H(q) up to a constant: the part of the objective without data."""
    location, raw = parameters
    if isinstance(at, LowRankFrame):
        return _low_rank_term(location, raw, at)
    scale = spread(raw)
    if raw.ndim == 1:
        quadratic = (at.precision * (location**2 + scale**2)).sum()
        return at.h @ location - 0.5 * quadratic + raw.sum()
    quadratic = location @ at.precision @ location + ((at.precision @ scale) * scale).sum()
    return at.h @ location - 0.5 * quadratic + jnp.diagonal(raw).sum()


def thetas(parameters: tuple[Any, Any], at: AnyFrame, noise: Any) -> Any:
    """Returns draws θ [draws, D] of the guide, for standard normal ``noise`` [draws, D]."""
    if isinstance(at, LowRankFrame):
        location, raw = parameters
        return around((to_theta(at, location[None, :])[0], raw), at, noise)
    return to_theta(at, draw(parameters, noise))


def around(guide: tuple[Any, Any], at: AnyFrame, noise: Any) -> Any:
    """Returns the same as ``thetas`` for a guide (centre in θ, raw)."""
    centre, raw = guide
    if isinstance(at, LowRankFrame):
        return centre[None, :] + _spread_by(raw, at, noise)
    return to_theta(at._replace(mean=centre), draw((jnp.zeros_like(centre), raw), noise))


def to_theta(at: AnyFrame, z: Any) -> Any:
    """Maps draws z [draws, D] to θ = m + L z."""
    if isinstance(at, LowRankFrame):
        along = z @ at.q
        moved = at.scale[None, :] * (z + (along @ at.inside.T - along) @ at.q.T)
        return at.mean[None, :] + moved
    moved = z @ at.root.T if at.root.ndim == 2 else z * at.root[None, :]
    return at.mean[None, :] + moved


def draw(parameters: tuple[Any, Any], noise: Any) -> Any:
    """Returns z = a + B ε for standard normal ε [draws, D], full or diagonal."""
    location, raw = parameters
    scale = spread(raw)
    return location[None, :] + (noise @ scale.T if raw.ndim == 2 else noise * scale[None, :])


def pull_back(at: AnyFrame, location: Any, raw: Any) -> tuple[Any, Any]:
    """Maps a gradient in (location in θ, raw) to one in (a, raw): ∂/∂a = Lᵀ ∂/∂θ."""
    if isinstance(at, LowRankFrame):
        scaled = at.scale * location
        along = at.q.T @ scaled
        return scaled + at.q @ (at.inside.T @ along - along), raw
    if raw.ndim == 1:
        return at.root * location, raw
    return at.root.T @ location, jnp.tril(raw)


def scale_count(raw: Any) -> int:
    """Returns how many entries of raw are parameters."""
    size = raw.shape[0]
    return size if raw.ndim == 1 else size * (size + 1) // 2


def single(at: AnyFrame) -> AnyFrame:
    """Moves a frame to float32 on the device."""
    return type(at)(*(jnp.asarray(array, jnp.float32) for array in at))


def noise_in_frame(at: AnyFrame, std: float) -> Any:
    """Returns the mean square of noise of a given std on ∂/∂θ once pulled back to ∂/∂a = Lᵀ ∂/∂θ."""
    if isinstance(at, LowRankFrame):
        # tr L Lᵀ, from the variances.
        kept = 1.0 + ((at.q @ at.inside) ** 2 - at.q**2).sum(axis=1)
        return (at.scale**2 * kept).mean() * std**2
    trace = (at.root * at.root).sum() / at.root.shape[0]
    return trace * std**2


def _grown(raw: Any, at: LowRankFrame) -> tuple[Any, Any, Any, Any, Any]:
    """Returns log c [D], F = c∘Q [D, r], R′ᵀ and its inverse [r, r], lower triangular, and HT [r, r]."""
    size, rank = at.q.shape
    growth = raw[:size]
    spanned = jnp.exp(growth)[:, None] * at.q
    root = jnp.linalg.cholesky(spanned.T @ spanned)
    # Solves for r columns, never for D: LAPACK solves triangles, while products with F are plain matmuls.
    inverse = jax.scipy.linalg.solve_triangular(root, jnp.eye(rank, dtype=raw.dtype), lower=True)
    triangle = jnp.zeros((rank, rank), raw.dtype).at[np.tril_indices(rank)].set(raw[size:])
    return growth, spanned, root, inverse, at.inside @ spread(triangle)


def _spread_by(raw: Any, at: LowRankFrame, noise: Any) -> Any:
    """Returns the guide's root times each row of ``noise`` [draws, D]."""
    growth, spanned, _, inverse, inside = _grown(raw, at)
    # Q′ = F R′⁻¹.
    kernel = inverse.T @ (inside @ inverse - inverse)
    back = (noise @ spanned) @ kernel.T
    return (at.scale * jnp.exp(growth))[None, :] * (noise + back @ spanned.T)


def _low_rank_term(location: Any, raw: Any, at: LowRankFrame) -> Any:
    along = at.q.T @ location
    moved = location + at.q @ (at.inside @ along - along)
    inner = at.inside @ along  # Qᵀ of the former
    growth, spanned, root, inverse, inside = _grown(raw, at)
    outer, kept = spanned @ (inverse.T @ inside), spanned @ inverse.T  # Q′HT and Q′
    variance = jnp.exp(2.0 * growth) * (1.0 + (outer**2 - kept**2).sum(axis=1))
    reached = root @ inside  # Rᵀ on both sides of its square is Bᵀ Σ B
    quadratic = (at.precision * (moved**2 + variance)).sum()
    quadratic += inner @ (at.within @ inner) + ((at.within @ reached) * reached).sum()
    logs = jnp.log(jnp.diagonal(inside)).sum() - jnp.log(jnp.diagonal(at.inside)).sum()
    return at.h @ location - 0.5 * quadratic + growth.sum() + logs
