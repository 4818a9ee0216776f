"""Reads a study's prior expectations of a column: for planning, and of a count's mean for a clip norm."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedvi.data.written import is_number
from fedvi.errors import ConfigError, did_you_mean

__all__ = ["Expected", "parse_expected"]

_KEYS = {
    "number": ("mean", "sd", "missing", "correlations"),
    "count": ("mean", "sd", "missing", "correlations"),
    "level": ("shares", "missing"),
    "binary": ("share", "auc", "missing", "correlations"),
}


class Expected(NamedTuple):
    """Expectations of a column, stated before any record is read; None where not stated.

    Attributes:
      mean, sd: of a number, in the unit of the file.
      shares: of the levels in their order; for a binary column (false, true).
      missing: the share of missing cells.
      auc: for a binary outcome, how well the covariates predict it: the area under the ROC curve.
      correlations: other columns → correlation; each is stated at one of the two columns.
    """

    mean: float | None = None
    sd: float | None = None
    shares: tuple[float, ...] | None = None
    missing: float | None = None
    auc: float | None = None
    correlations: Mapping[str, float] = MappingProxyType({})


def parse_expected(table: Mapping[str, Any], path: str) -> Expected:
    """Reads ``expected`` of a column's table; see docs/plan.md.

    Args:
      table: of a column whose ``type`` and ``levels`` or ``bounds`` were checked.
      path: of the table, for messages.

    Raises:
      ConfigError: names the key, its value, and the expected value.

    >>> parse_expected({"type": "binary", "expected": {"share": 0.25}}, "data.schema.death").shares
    (0.75, 0.25)
    """
    raw, kind, path = table.get("expected", {}), str(table.get("type")), f"{path}.expected"
    keys = _KEYS[kind]
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"{path}: {raw!r}, expected a table", f"its keys are {', '.join(keys)}, each optional"
        )
    for key in raw:
        if key not in keys:
            raise ConfigError(f"{path}.{key}: unknown key", did_you_mean(str(key), keys))

    def number(key: str, low: float, high: float, said: str) -> float | None:
        value = raw.get(key)
        if value is None or (is_number(value) and low <= value <= high):
            return None if value is None else float(value)
        raise ConfigError(f"{path}.{key}: {value!r}, expected {said}")

    low, high = table.get("bounds", (-math.inf, math.inf))
    mean = number("mean", low, high, "a number within the bounds")
    sd = number(
        "sd", 1e-12 * (high - low), high - low, "a number above 0, within the bounds' width"
    )
    missing = number("missing", 0.0, 0.99, "a share from 0 to 0.99")
    share = number("share", 0.0, 1.0, "the share of true, from 0 to 1")
    auc = number("auc", 0.5, 0.99, "a number from 0.5 (no better than chance) to 0.99")
    shares: tuple[float, ...] | None = None if share is None else (1.0 - share, share)
    if "shares" in raw:
        shares = _shares(raw["shares"], len(table.get("levels", ())), f"{path}.shares")
    correlations = raw.get("correlations", {})
    if not isinstance(correlations, Mapping) or not all(
        is_number(value) and -1.0 < value < 1.0 for value in correlations.values()
    ):
        raise ConfigError(
            f"{path}.correlations: {correlations!r}, expected a table from other columns to numbers "
            "between -1 and 1"
        )
    return Expected(mean, sd, shares, missing, auc, dict(correlations))


def _shares(value: Any, count: int, path: str) -> tuple[float, ...]:
    fits = isinstance(value, list | tuple) and len(value) == count and all(map(is_number, value))
    if not fits or min(value) < 0.0 or not math.isclose(sum(value), 1.0, abs_tol=0.02):
        raise ConfigError(
            f"{path}: {value!r}, expected {count} shares that add up to 1, in the order of the levels"
        )
    return tuple(float(share) / sum(value) for share in value)
