"""The posterior by coordinate, as plain values for tables and JSON; needs no JAX."""

import math
from collections.abc import Sequence
from typing import Any

from fedvi.typing import LOG_SCALE, Eta

__all__ = ["MOST", "coefficients", "of_moments"]

MOST = 10_000
"""So many coordinates are listed at most; all of them are in the arrays of a posterior's file."""

# The 97.5 % point of the standard normal: intervals are central 95 % of a Gaussian marginal.
_Z95 = 1.959963984540054


def coefficients(
    family: Any,
    posterior: Eta,
    names: Sequence[str],
    units: Sequence[str],
    ratio: str,
    pooled: Eta | None = None,
) -> list[dict[str, Any]]:
    """Lists the posterior of the first ``MOST`` coordinates of θ: mean, sd, 95 % interval, ratio, pooled.

    Args:
      family: of q.
      posterior: η of a proper q.
      names, units: of the coordinates of θ, which for a NumPyro model are the unconstrained ones.
      ratio: of what exp(coefficient) is a ratio, such as "odds"; "" for none. A baseline hazard, or how
        far sites differ, is compared with nothing: its row holds None there. The latter, log τ, also
        has "scale", "scale_lower" and "scale_upper", the median and the 95 % interval of τ.
      pooled: η of another fit to stand beside it.
    """
    mean, sd = family.moments(posterior)
    beside = None if pooled is None else family.moments(pooled)
    return of_moments(mean, sd, names, units, ratio, beside)


def of_moments(
    mean: Any,
    sd: Any,
    names: Sequence[str],
    units: Sequence[str],
    ratio: str,
    beside: tuple[Any, Any] | None = None,
) -> list[dict[str, Any]]:
    """Lists what ``coefficients`` lists, from mean and sd of each coordinate, as a file keeps them.

    Args:
      mean, sd: arrays by coordinate of θ.
      names, units, ratio: see ``coefficients``.
      beside: mean and sd of another fit to stand beside it.
    """
    rows = []
    for index, (name, unit) in enumerate(zip(names[:MOST], units[:MOST], strict=True)):
        low, high = mean[index] - _Z95 * sd[index], mean[index] + _Z95 * sd[index]
        row = {
            "name": name,
            "unit": unit,
            "mean": float(mean[index]),
            "sd": float(sd[index]),
            "lower": float(low),
            "upper": float(high),
        }
        if ratio:
            told = not name.startswith(("baseline (", LOG_SCALE))
            row |= {
                f"{ratio}_{what}": _exp(value) if told else None
                for what, value in (("ratio", mean[index]), ("lower", low), ("upper", high))
            }
        if name.startswith(LOG_SCALE):
            row |= {
                what: _exp(value)
                for what, value in (
                    ("scale", mean[index]),
                    ("scale_lower", low),
                    ("scale_upper", high),
                )
            }
        if beside is not None:
            row |= {"pooled_mean": float(beside[0][index]), "pooled_sd": float(beside[1][index])}
        rows.append(row)
    return rows


def _exp(value: float) -> float:
    return math.exp(min(float(value), 700.0))
