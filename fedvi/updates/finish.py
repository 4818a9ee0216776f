"""Turns a released answer into a change of its client's factor; NumPy only, since servers run it.

For answers that are natural parameters already, see ``base.finish_natural``.
"""

import math
from typing import Any

import numpy as np
import scipy

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.base import FactoredGaussian
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian, GaussianEta
from fedvi.expfam.low_rank_gaussian import LowRankEta
from fedvi.expfam.matrices import from_triangle, triangle
from fedvi.updates.base import Change, Task, check_shapes, finish_natural
from fedvi.updates.coordinates import Survey, asked_for
from fedvi.updates.whitened_changes import PriorFrame, from_vector

__all__ = [
    "SHARPEST",
    "finish_change",
    "finish_low_rank",
    "finish_site",
    "finish_sites",
    "finish_whitened",
    "scale_of",
    "to_low_rank",
    "to_natural",
]

SHARPEST = 6.0
"""A released scale is within exp(±6) of the broadcast sds; float64 cannot represent the precision of a
much smaller scale."""


def finish_whitened(value: dict[str, np.ndarray], task: Task) -> Change:
    """Turns a released guide in the coordinates of ``whitened`` into Δη = η(guide) − η.

    Args:
      value: ``location`` [D], and ``scale`` [D, D], or [D] for the diagonal family, float64.
      task: the answered task; the shape of its posterior's precision determines the family.

    Raises:
      ProtocolError: if names or shapes of the arrays differ.
    """
    check_shapes(value, {"location": task.posterior.h.shape, "scale": task.posterior.J.shape})
    size = task.posterior.h.shape[0]
    family = FullGaussian(size) if task.posterior.J.ndim == 2 else DiagonalGaussian(size)
    optimum = to_natural(family, task, value["location"], _conditioned(value["scale"]))
    return Change(tree.subtract(optimum, task.posterior))


def finish_low_rank(value: dict[str, np.ndarray], task: Task, *, farthest: float) -> Change:
    """Turns a released η of the low-rank family into Δη = η − η of the broadcast q.

    The factors c of its guide are within exp(±farthest), and exp(±6). So d = d of the broadcast q ÷ c² is
    positive, and not far from what it was. The location cannot be checked so: the task holds no directions.

    Args:
      value: ``h`` [D], ``d`` [D] and ``K`` [r, r].
      task: the answered task.
      farthest: how far each number of a guide moves at most.

    Raises:
      ProtocolError: if names or shapes of the arrays differ.
      ImpossibleAnswer: d is not positive, or further away.
    """
    change = finish_natural(value, task)
    most = math.exp(2.0 * min(farthest, SHARPEST) + 1e-3)
    before, after = task.posterior.d, value["d"]
    if not ((after >= before / most) & (after <= before * most)).all():
        raise errors.ImpossibleAnswer(
            f"the answer to task {task.task_id!r} has a number of 'd' that is not within a factor of "
            f"{most:.6g} of the broadcast one, expected what the solver's steps can reach",
            "does the site run the same study and the same version of fedvi, and is it who it should be?",
        )
    return change


def finish_site(
    value: dict[str, np.ndarray],
    task: Task,
    *,
    weight: float,
    rate: float,
    survey: Survey | None = None,
) -> Change:
    """Turns a gradient G and a curvature H at the broadcast mean m into the site (G + H m, H).

    The site replaces the client's factor, whatever that was. The noisy H is not projected; only the sum
    over sites may be (docs/proofs/updates.md §2). If the task asked for a survey of columns or for sizes of
    slopes, see ``asked_for``, the factor does not change.

    Args:
      value: ``gradient`` [D] and ``curvature`` [D(D+1)/2], the lower triangle by rows with off-diagonal
        entries × √2, times ``weight``; sums over a batch.
      task: the answered task; its posterior is a full Gaussian.
      weight: c.
      rate: the public share of records in a batch.
      survey: the description of surveys; None if the solver asks for none.

    Raises:
      ProtocolError: if names or shapes of the arrays differ.
    """
    size = task.posterior.h.shape[0]
    rows, columns, _ = triangle(size)
    check_shapes(value, {"gradient": (size,), "curvature": (len(rows),)})
    at, asked = task.coordinates, asked_for(survey, task.coordinates)
    if asked != "step":
        assert survey is not None
        diagonal, same = (
            value["curvature"][rows == columns],
            tree.subtract(task.factor, task.factor),
        )
        if asked == "sizes":
            counts = GaussianEta(value["gradient"] / rate, np.diag(diagonal) / rate)
            return Change(same, counts, sized=0.0 if at is None else at.spread)
        unit = survey["unit"] / rate
        squares = np.diag(diagonal) * unit
        if survey["outcome"] is not None and survey["outcome"]["exposed"] is not None:
            squares[1, 0] = squares[0, 1] = value["curvature"][1] * unit / math.sqrt(2.0)
        return Change(same, GaussianEta(value["gradient"] * unit, squares))
    curvature = _curvature(value["curvature"], size, weight, rate)
    mean, _ = FullGaussian(size).moments(task.posterior)
    gradient = value["gradient"] / rate
    if at is not None:
        gradient, curvature = at.outward(GaussianEta(gradient, curvature))
    site = GaussianEta(gradient + curvature @ mean, curvature)
    return Change(tree.subtract(site, task.factor))


def finish_sites(
    value: dict[str, np.ndarray],
    task: Task,
    factors: GaussianEta,
    *,
    weight: float,
    rate: float,
    survey: Survey | None = None,
) -> GaussianEta:
    """Does what ``finish_site`` does, for answers of many clients whose tasks differ only in the factor.

    Args:
      value: as in ``finish_site``, each with a first axis for clients.
      task: the task of any of the clients; it must not ask for a survey.
      factors: of each client, [clients, D] and [clients, D, D].
      weight, rate, survey: as in ``finish_site``.

    Returns:
      The change of each factor, bit for bit as from ``finish_site``.

    Raises:
      ProtocolError: the answers are surveys.
    """
    at = task.coordinates
    if asked_for(survey, at) != "step":
        raise errors.ProtocolError("surveys were to be finished together, expected one by one")
    size = task.posterior.h.shape[0]
    curvature = _curvature(value["curvature"], size, weight, rate)
    mean, _ = FullGaussian(size).moments(task.posterior)
    gradient = value["gradient"] / rate
    if at is not None:
        gradient, curvature = at.all_outward(GaussianEta(gradient, curvature))
    location = gradient + np.matmul(curvature, mean)
    # In place: there may be very many matrices, and they are this function's own.
    return GaussianEta(location - factors.h, np.subtract(curvature, factors.J, out=curvature))


def _curvature(released: np.ndarray, size: int, weight: float, rate: float) -> np.ndarray:
    return from_triangle(released / (triangle(size)[2] * weight * rate), size)


def finish_change(
    value: dict[str, np.ndarray], task: Task, *, mean: list[float], root: list[Any], weight: float
) -> Change:
    """Turns a released change in the prior's coordinates into Δη, times a public weight.

    Args:
      value: ``change``, as ``whitened_changes.to_vector`` lays it out.
      task: the answered task; the shape of its posterior's precision determines the family.
      mean: m₀ of the frame, [D].
      root: L₀ by rows, [D][D]; or its diagonal, [D], for the diagonal family.
      weight: α, 1 / K or 1.

    Raises:
      ProtocolError: if names or shapes of the arrays differ.
    """
    size, is_full = task.posterior.h.shape[0], task.posterior.J.ndim == 2
    count = size + (size * (size + 1) // 2 if is_full else size)
    check_shapes(value, {"change": (count,)})
    scale = np.asarray(root, np.float64)
    frame = PriorFrame(np.asarray(mean), np.diag(scale) if is_full and scale.ndim == 1 else scale)
    return Change(from_vector(frame, weight * np.asarray(value["change"], np.float64)))


def to_low_rank(
    family: FactoredGaussian, task: Task, location: np.ndarray, raw: np.ndarray
) -> LowRankEta:
    """Returns η of a low-rank guide, in float64 NumPy; no array is [D, D].

    Directions of the triangle are kept within exp(±6) of the broadcast sds, as in ``finish_whitened``.
    With all entries of raw at ±6 at random, one member of 140 was not proper in float64; a server treats
    it like any improper factor.

    Args:
      family: of the task's posterior.
      task: the answered task.
      location: a, [D].
      raw: [D + r(r+1)/2], as ``whitened`` packs it, every entry of moderate size.
    """
    parts, size = family.root_parts(task.posterior), family.size
    along = parts.q.T @ location
    moved = parts.scale * (location + parts.q @ (parts.inside @ along - along))
    triangle = np.zeros((family.rank, family.rank))
    triangle[np.tril_indices(family.rank)] = raw[size:]
    triangle = _conditioned(triangle)
    inside = parts.inside @ scale_of(triangle)
    mean = family.location(task.posterior) + moved
    return family.from_root(mean, parts.scale * np.exp(raw[:size]), inside)


def to_natural(family: Any, task: Task, location: np.ndarray, raw: np.ndarray) -> Any:
    """Returns η of the guide, in float64 NumPy, from float64 parameters.

    The precision is built from triangular factors, so it is finite and proper for every raw of
    moderate size.
    """
    if isinstance(family, FactoredGaussian):
        return to_low_rank(family, task, location, raw)
    if not family.correlated:
        mean, root = family.moments(task.posterior)
        return family.from_moments(mean + root * location, (root * np.exp(raw)) ** 2)
    mean, root = family.location_root(task.posterior)
    inverse = scipy.linalg.solve_triangular(root @ scale_of(raw), np.eye(family.size), lower=True)
    precision = inverse.T @ inverse
    return GaussianEta(precision @ (mean + root @ location), precision)


def scale_of(raw: np.ndarray) -> np.ndarray:
    """Returns B of a scale [D, D]: its lower triangle, whose diagonal ``raw`` holds in logs."""
    return np.asarray(np.tril(raw, -1) + np.diag(np.exp(np.diagonal(raw))))


def _conditioned(raw: np.ndarray) -> np.ndarray:
    """Limits every direction of a scale to exp(±6) of the broadcast sds; post-processing.

    For a triangular matrix it is not enough to limit the entries: its inverse grows with their products,
    until the precision is singular in float64. Noise alone can cause that.
    """
    if raw.ndim == 1:
        return raw
    left, singular, _ = np.linalg.svd(scale_of(raw))
    kept = np.clip(singular, np.exp(-SHARPEST), np.exp(SHARPEST))
    if np.array_equal(kept, singular):
        return raw
    # The triangular root of U S² Uᵀ.
    root = scipy.linalg.qr((left * kept).T, mode="r")[0].T
    root = root * np.sign(np.diagonal(root))
    return np.tril(root, -1) + np.diag(np.log(np.diagonal(root)))
