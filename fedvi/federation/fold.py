"""Folds answers into the posterior, which is always prior + Σ factors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi.expfam import stacked
from fedvi.expfam.base import blocks
from fedvi.typing import Eta

__all__ = ["Gap", "fold", "gap", "posterior_of"]


class Gap(NamedTuple):
    """How far apart two posteriors are; all numbers are functions of released values.

    Attributes:
      mean_shift: the largest change of a coordinate's mean, in sds of the later posterior.
      sd_ratio: the largest ratio of a coordinate's sds, later to earlier or the inverse.
      surprise: the larger of ``Standing.surprise`` and ``foretold.missed``; 0 without predictions.
      jitter: see ``Standing.jitter``; the part of ``mean_shift`` that noise alone explains.
    """

    mean_shift: float
    sd_ratio: float
    surprise: float = 0.0
    jitter: float = 0.0

    @property
    def largest(self) -> float:
        """The gap in sds: the larger of ``mean_shift``, the largest move of a mean, and ``surprise``."""
        return max(self.mean_shift, self.surprise)


def posterior_of(prior: Eta, factors: Mapping[str, Eta]) -> Eta:
    """Multiplies prior and factors: η = η_0 + Σ_m η_m, in the order of the clients' names.

    The fixed order makes the float64 sum independent of the order of arrival.
    """
    return stacked.total(factors, prior)


def fold(
    factors: Mapping[str, Eta],
    deltas: Mapping[str, Eta],
    damping: float,
    keep: Callable[[Eta], Eta] = lambda eta: eta,
) -> Mapping[str, Eta]:
    """Applies answers: η_m ← η_m + s · Δ_m for each client that answered; returns these factors.

    Factors are never projected and need not be proper.

    Args:
      factors: η_m of every client.
      deltas: Δ_m of the answers to commit, by client.
      damping: s, the same for all of them.
      keep: called with each new factor; returns an equal one, which may be stored outside memory.

    Source: Ashman et al. (2022), arXiv:2202.12275; docs/proofs/updates.md §1.
    """
    return stacked.added(factors, deltas, damping, keep)


def gap(family: Any, before: Eta, after: Eta) -> Gap:
    """Measures how far a posterior moved; both must be proper.

    A coordinate without a standard deviation, such as that of a Student t with two or fewer degrees of
    freedom, is left out of the comparisons that need it; a prior may be that wide.
    """
    shifts, ratios = [], []
    for earlier, later in blocks(family, before, after):
        mean_before, sd_before = family.moments(earlier)
        mean_after, sd_after = family.moments(later)
        after_is_finite = np.isfinite(sd_after)
        both = after_is_finite & np.isfinite(sd_before)
        moved = np.abs(mean_after - mean_before)[after_is_finite] / sd_after[after_is_finite]
        shifts.append(moved.max(initial=0.0))
        ratios.append(np.abs(np.log(sd_after[both] / sd_before[both])).max(initial=0.0))
    return Gap(float(np.max(shifts)), float(np.exp(np.max(ratios))))
