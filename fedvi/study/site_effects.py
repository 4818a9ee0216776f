"""Reads a study's effects that differ by site, and reports them; needs no JAX."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.data.written import is_number
from fedvi.study.config import Study
from fedvi.study.spec import regressions
from fedvi.study.spec.coefficients import in_file_units, outcome_unit
from fedvi.typing import INTERCEPT, LOG_SCALE

__all__ = ["KEYS", "Wanted", "in_words", "remark", "wanted", "warnings"]

KEYS = ("site_effect", "site_scale")
"""The keys of ``[model]`` that are read here."""
# With fewer clients a Gaussian over log τ is clearly overconfident; see docs/modes.md.
_FEW = 15
_EXAMPLE = 'write site_effect = "intercept", or a list such as ["intercept", "age"]'
_SCALE = (
    "write site_scale = 0.5, the sd of effects between sites, or site_scale = "
    "{ learn = true, prior = 0.5 }"
)


class Wanted(NamedTuple):
    """A study's site effects, from its ``[model]``.

    Attributes:
      columns: coefficients of the formula that differ by site; "(Intercept)" is the level.
      scale: τ, one for all or one for each; if learnt, the median of its prior.
      learnt: whether τ is inferred.
    """

    columns: tuple[str, ...]
    scale: Any
    learnt: bool


def wanted(study: Study) -> Wanted | None:
    """Reads ``model.site_effect`` and ``model.site_scale``; None if a study has neither.

    Also None for a user's own function, whose arguments may have these names.

    Raises:
      ConfigError: one of the two is missing, or has a wrong value.
    """
    arguments = study.model.arguments
    given = [key for key in KEYS if key in arguments]
    if not given or regressions.is_function(study):
        return None
    if len(given) == 1:
        missing = next(key for key in KEYS if key not in given)
        raise errors.ConfigError(
            f"model.{missing} is missing beside model.{given[0]}",
            _EXAMPLE if missing == "site_effect" else _SCALE,
        )
    scale, learnt = _scale(arguments["site_scale"])
    return Wanted(_columns(arguments["site_effect"]), scale, learnt)


def in_words(study: Study) -> str:
    """Returns ", site effects on (Intercept)" for a plan's line on the model; or ""."""
    found = wanted(study)
    return "" if found is None else f", site effects on {', '.join(found.columns)}"


def warnings(study: Study) -> tuple[str, ...]:
    """Warns of a scale that is learnt from few sites: allowed, but probably unintended."""
    found, sites = wanted(study), len(study.clients)
    if found is None or not found.learnt or sites >= _FEW:
        return ()
    return (
        f"model.site_scale is learnt from {sites} sites, and intervals of it and of coefficients that "
        f"differ by site will be too narrow: it takes {_FEW} and more. Declare it, such as site_scale = "
        "0.5, and see what other values change",
    )


def remark(study: Study, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a remark on the sites for which coefficients hold, and how far sites differ.

    Args:
      study: the coefficients' study.
      rows: of the table, see ``fedvi.study.spec.coefficients``.

    Returns:
      "" if sites have no effects.
    """
    found = wanted(study)
    if found is None:
        return ""
    ratio = regressions.ratio(study)
    said = (
        "coefficients are those at a given site, whose own effect on "
        + " and ".join(found.columns)
        + " is 0"
    )
    if ratio:
        said += f": {ratio} ratios compare records of one site, not of the sites mixed"
    counted = f" {outcome_unit(study)}".rstrip()
    learnt = [row for row in rows if row["name"].startswith(LOG_SCALE)]
    if not found.learnt:
        scales = found.scale if isinstance(found.scale, list) else [found.scale]
        unit = math.exp(in_file_units(study, (LOG_SCALE,)).shift[0])
        spans = [f"{value * unit:g}{counted}" for value in scales]
        return f"{said}. Sites differ by τ = {', '.join(spans)} (sd, declared)"
    spans = [
        f"{row['scale']:.3g} ({row['scale_lower']:.2g} to {row['scale_upper']:.3g}){counted} for "
        + row["name"].removeprefix(LOG_SCALE)
        for row in learnt
    ]
    return f"{said}. Sites differ by τ = {', '.join(spans)} (sd, learnt: median and 95 %)"


def _columns(given: Any) -> tuple[str, ...]:
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not listed or not all(isinstance(x, str) for x in listed):
        raise errors.ConfigError(
            f'model.site_effect is {given!r}, expected "intercept" or a list of coefficients',
            _EXAMPLE,
        )
    return tuple(INTERCEPT if name == "intercept" else name for name in listed)


def _scale(given: Any) -> tuple[Any, bool]:
    """Returns τ, or the median of its prior, and whether it is learnt."""
    if not isinstance(given, dict):
        _check_numbers("model.site_scale", given)
        return given, False
    for key in given:
        if key not in ("learn", "prior"):
            raise errors.ConfigError(
                f"model.site_scale.{key}: unknown key", errors.did_you_mean(key, ["learn", "prior"])
            )
    if given.get("learn") is not True:
        raise errors.ConfigError(
            f"model.site_scale.learn is {given.get('learn')!r}, expected true", _SCALE
        )
    prior = given.get("prior", 1.0)
    _check_numbers("model.site_scale.prior", prior)
    return prior, True


def _check_numbers(path: str, given: Any) -> None:
    for value in given if isinstance(given, list) else [given]:
        if not is_number(value) or not 1e-6 <= value <= 1e6:
            raise errors.ConfigError(
                f"{path} is {given!r}, expected a number from 1e-06 to 1e+06, or a list of such",
                _SCALE,
            )
