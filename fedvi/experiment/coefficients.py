"""The posterior by coordinate, as plain values for tables and JSON; needs no JAX."""

import math
from collections.abc import Sequence
from typing import Any

from fedvi.typing import Eta

__all__ = ["coefficients"]

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
    """Lists the posterior by coordinate of θ: mean, sd, 95 % interval, ratio, pooled fit.

    Args:
      family: of q.
      posterior: η of a proper q.
      names, units: of the coordinates of θ, which for a NumPyro model are the unconstrained ones.
      ratio: of what exp(coefficient) is a ratio, such as "odds"; "" for none. A baseline hazard is
        compared with nothing: its row holds None there.
      pooled: η of another fit to stand beside it.
    """
    mean, sd = family.moments(posterior)
    rows = []
    for index, (name, unit) in enumerate(zip(names, units, strict=True)):
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
            told = not name.startswith("baseline (")
            row |= {
                f"{ratio}_{what}": _exp(value) if told else None
                for what, value in (("ratio", mean[index]), ("lower", low), ("upper", high))
            }
        if pooled is not None:
            pooled_mean, pooled_sd = family.moments(pooled)
            row |= {"pooled_mean": float(pooled_mean[index]), "pooled_sd": float(pooled_sd[index])}
        rows.append(row)
    return rows


def _exp(value: float) -> float:
    return math.exp(min(float(value), 700.0))
