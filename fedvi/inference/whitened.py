"""The coordinates that gradient solvers climb in: those in which the broadcast q is standard normal.

θ = m + L z with L Lᵀ = J⁻¹ of the broadcast q, which is public. The guide is z ~ N(a, B Bᵀ), with B
lower triangular for the full family and diagonal for the diagonal one; ``parameters`` are (a, raw),
where raw is B with its diagonal in logs. q itself is (0, 0). In these coordinates a step of 0.01 is a
hundredth of a posterior sd, however sharp or flat q is.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedvi.expfam.gaussian import FullGaussian
from fedvi.inference.base import Task, cavity

__all__ = [
    "Frame",
    "draw",
    "frame",
    "noise_in_frame",
    "public_term",
    "pull_back",
    "scale_count",
    "single",
    "spread",
    "start",
    "to_theta",
]


class Frame(NamedTuple):
    """The broadcast q's mean m [D] and root L ([D, D], or [D] for the diagonal family), and the
    cavity's (h, J) in the whitened coordinates."""

    mean: Any
    root: Any
    h: Any
    precision: Any


def frame(family: Any, task: Task) -> Frame:
    """Returns a task's frame, in float64 NumPy."""
    without = cavity(task)
    if isinstance(family, FullGaussian):
        mean, root = family.location_root(task.posterior)
        h = root.T @ (without.h - without.J @ mean)
        return Frame(mean, root, h, root.T @ without.J @ root)
    mean, root = family.moments(task.posterior)
    return Frame(mean, root, root * (without.h - without.J * mean), root * without.J * root)


def start(at: Frame) -> tuple[Any, Any]:
    """Returns the parameters of the broadcast q, in the dtype of the frame: zeros."""
    return jnp.zeros_like(at.mean), jnp.zeros_like(at.root)


def spread(raw: Any) -> Any:
    """Returns B: lower triangular [D, D], or [D] of a diagonal."""
    if raw.ndim == 1:
        return jnp.exp(raw)
    return jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw)))


def public_term(parameters: tuple[Any, Any], at: Frame) -> Any:
    """Returns ⟨η_cavity, E_q[T]⟩ + H(q) up to a constant: the part of the objective without data."""
    location, raw = parameters
    scale = spread(raw)
    if raw.ndim == 1:
        quadratic = (at.precision * (location**2 + scale**2)).sum()
        return at.h @ location - 0.5 * quadratic + raw.sum()
    quadratic = location @ at.precision @ location + ((at.precision @ scale) * scale).sum()
    return at.h @ location - 0.5 * quadratic + jnp.diagonal(raw).sum()


def to_theta(at: Frame, z: Any) -> Any:
    """Maps draws z [draws, D] to θ = m + L z."""
    moved = z @ at.root.T if at.root.ndim == 2 else z * at.root[None, :]
    return at.mean[None, :] + moved


def draw(parameters: tuple[Any, Any], noise: Any) -> Any:
    """Returns z = a + B ε for standard normal ε [draws, D]."""
    location, raw = parameters
    scale = spread(raw)
    return location[None, :] + (noise @ scale.T if raw.ndim == 2 else noise * scale[None, :])


def pull_back(at: Frame, location: Any, raw: Any) -> tuple[Any, Any]:
    """Maps a gradient in (location in θ, raw) to one in (a, raw): ∂/∂a = Lᵀ ∂/∂θ."""
    if raw.ndim == 1:
        return at.root * location, raw
    return at.root.T @ location, jnp.tril(raw)


def scale_count(raw: Any) -> int:
    """Returns how many entries of raw are parameters."""
    size = raw.shape[0]
    return size if raw.ndim == 1 else size * (size + 1) // 2


def single(at: Frame) -> Frame:
    """Moves a frame to float32 on the device."""
    return Frame(*(jnp.asarray(array, jnp.float32) for array in at))


def noise_in_frame(at: Frame, std: float) -> Any:
    """Returns the mean square of noise of a given std on ∂/∂θ once pulled back to ∂/∂a = Lᵀ ∂/∂θ."""
    trace = (at.root * at.root).sum() / at.root.shape[0]
    return trace * std**2
