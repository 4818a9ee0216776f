"""Compares the last released gradients with what the reported posterior foretells; NumPy, for servers."""

import math
from typing import Any

import numpy as np

from fedvi.typing import Eta
from fedvi.updates.base import Standing
from fedvi.updates.running_means import LEFT_OUT

__all__ = ["missed"]

# In sds of a χ²: a gradient further from what was foretold than this is not explained by noise.
_RARE = 5.0


def missed(family: Any, stand: Any, known: Eta, standing: Standing) -> float:
    """Returns by how much the last release missed what the reported posterior foretells, in its sds.

    The reported mean m̄ is a mean of steps, and the curvature J one of rounds. If both describe the log
    posterior, its slope at the θ that was handed out last is J (m̄ − θ), but for noise. Where a run came
    from far away, J holds the curvature of another place: steps become too short to be seen beside
    noise, and m̄ stays where it is, far from the optimum. Successive gradients then show nothing
    (``Standing.surprise``), and the slope is much flatter than foretold.

    Post-processing of released values.

    Args:
      family: full Gaussian.
      stand: ``noise_aware.of_sites`` with the noise that it was given.
      known: prior + all factors without noise.
      standing: of the last fold.

    Returns:
      The largest move of a mean in the step that the difference asks for, in posterior sds. 0 if noise
      explains it, or where nothing is foretold: without noise, without gradients, or before means are
      formed.
    """
    noise, gradient = getattr(stand, "keywords", {}), standing.gradient
    if gradient is None or not standing.folds > 1 + LEFT_OUT or not noise.get("gradient_sd"):
        return 0.0
    model, reported, slope, at = (
        *(standing.handed_out, standing.reported),
        *(gradient.h + known.h - known.J @ gradient.J, gradient.J),
    )
    way = family.moments(reported)[0] - at
    if (frame := standing.coordinates) is not None:
        model, reported, known = map(frame.inward, (model, reported, known))
        slope, way = frame.columns(slope), frame.coefficients(way)
    size, variance = len(way), len(standing.sites) * standing.noise
    off = slope - model.J @ way
    expected = variance * (
        noise["gradient_sd"] ** 2 + noise["curvature_sd"] ** 2 * standing.squares * (way @ way)
    ) + (1.0 / noise["rate"] - 1.0) * max(0.0, np.trace(model.J - known.J) / size)
    if off @ off <= expected * (size + _RARE * math.sqrt(2.0 * size)):
        return 0.0
    # No further than a step goes: where curvature is hidden, noise alone would move a mean far.
    values, vectors = np.linalg.eigh(model.J)
    least = noise["floor"] * noise["gradient_sd"] * math.sqrt(variance * size)
    moved = vectors @ (vectors.T @ off / np.maximum(values, least))
    sds = np.sqrt(np.diagonal(np.linalg.inv(reported.J)))
    return float((np.abs(moved) / sds).max())
