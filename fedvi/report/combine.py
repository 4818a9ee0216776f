"""Combines analyses of several synthetic data sets into one answer."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedvi import errors

__all__ = ["Combined", "combine"]


class Combined(NamedTuple):
    """A combined estimate and its uncertainty.

    Attributes:
      estimate: [...].
      sd: of the estimate, including the posterior's uncertainty and its privacy noise, [...].
      degrees: degrees of freedom of the Student t for intervals, [...].
      floored: where there are too few sets for the sd, so that a larger one is used, bool [...].
    """

    estimate: np.ndarray
    sd: np.ndarray
    degrees: np.ndarray
    floored: np.ndarray


def combine(estimates: ArrayLike, variances: ArrayLike) -> Combined:
    """Combines the same analysis of m synthetic sets by the rules for fully synthetic data.

    With the mean q̄ and variance b of the estimates, and the mean v̄ of the variances that the analysis
    states, the estimate is q̄ and its variance T = (1 + 1/m) b − v̄. Each set scatters around the value for
    its θ because of its finite size (v̄); only the rest is uncertainty about θ. Where T is 0 or below, which
    more or larger sets would avoid, (1 + 1/m) b is used instead. Intervals are then too wide on average
    over many analyses. But a single interval with few sets and ``floored`` may be too narrow, since b was
    small by chance. The rules assume that the posterior is about right, including its noise; see
    docs/results.md.

    Args:
      estimates: [m, ...], one for each set.
      variances: the same shape, squared standard errors from the analysis of each set.

    Raises:
      ConfigError: there are fewer than two sets, the shapes differ, or a variance is not positive.

    Source: Raghunathan, Reiter and Rubin (2003), Multiple imputation for statistical disclosure limitation,
    J. Official Statistics 19(1), §2; Räisä et al. (2023), AISTATS, for sets of a private posterior.

    >>> found = combine([1.0, 2.0, 3.0], [0.1, 0.1, 0.1])
    >>> float(found.estimate), round(float(found.sd), 3)
    (2.0, 1.111)
    """
    values, stated = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    if values.ndim < 1 or len(values) < 2 or values.shape != stated.shape:
        raise errors.ConfigError(
            f"estimates are of shape {values.shape} and variances of {stated.shape}, expected the same "
            "of both, and at least two sets",
            "write several: fedvi synthesise --sets 10",
        )
    if not (np.isfinite(values).all() and np.isfinite(stated).all() and (stated > 0.0).all()):
        raise errors.ConfigError(
            "an estimate is not finite, or a variance is no number above 0",
            "give squared standard errors",
        )
    count = len(values)
    between = values.var(axis=0, ddof=1) * (1.0 + 1.0 / count)
    within = stated.mean(axis=0)
    left = between - within
    floored = np.asarray(left <= 0.0)
    # The degrees are unknown at b = 0, where the ratio is set to that of T = 0.
    ratio = np.divide(within, between, out=np.ones_like(within), where=between > 0.0)
    degrees = (count - 1) * np.where(floored, 1.0, (1.0 - ratio) ** 2)
    return Combined(
        values.mean(axis=0), np.sqrt(np.where(floored, between, left)), degrees, floored
    )
