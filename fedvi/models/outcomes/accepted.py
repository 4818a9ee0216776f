"""Declares what each built-in regression takes left of `~`, and what kind of ratio exp(coefficient) is.

Needs no JAX, so that a server can name a ratio too. An outcome refers to its entry by ``accepts``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ACCEPTED", "Accepted"]

# Quadrature nodes for one linear predictor.
_NODES = 20


class Accepted(NamedTuple):
    """The outcome that a regression accepts, and facts about it that need no model.

    Attributes:
      responses: accepted kinds of response, see ``fedvi.data.response``.
      needed: the same in words.
      columns: types of the columns left of `~`, in order; the last also applies to all that follow.
      ratio: the kind of ratio that exp(coefficient) is: "odds", "rate", "hazard", or "" if it is none.
      trials: whether its two columns count the events and non-events of trials.
      words: a description for a prompt; left out, ``needed``.
      left: how a formula writes its columns.
      settings: keys of ``[model]`` besides the formula → (value, why), for a draft. A ``noise_scale`` is
        in units of the scaled outcome here, and in those of the file in a draft.
      conjugate: whether its likelihood is Gaussian in θ, so that one visit of a client is exact.
      single: whether a record has one linear predictor.
      latents: whether it is Gaussian in θ given Pólya-Gamma latents, so that `vips` can fit it.
      expected: for a likelihood y a − A(a), maps mean and sd [P] of predictors a to E A'(a) and E A''(a),
        [P] each; None for any other.
    """

    responses: tuple[str, ...]
    needed: str
    columns: tuple[str, ...] = ()
    ratio: str = ""
    trials: bool = False
    words: str = ""
    left: str = "{}"
    settings: Mapping[str, tuple[Any, str]] = MappingProxyType({})
    conjugate: bool = False
    single: bool = True
    latents: bool = False
    expected: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None


def _logistic(mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns E A'(a) and E A''(a) for A(a) = log(1 + eᵃ)."""
    from scipy.special import expit

    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    share = expit(mean[:, None] + sd[:, None] * points[None, :])
    weights = weights / weights.sum()
    return share @ weights, (share * (1.0 - share)) @ weights


def _poisson(mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns E A'(a) and E A''(a) for A(a) = eᵃ."""
    rate = np.exp(mean + 0.5 * sd**2)
    return rate, rate


_COUNT = Accepted(("count",), 'a count, a column of type = "count"', ("count",), "rate")

ACCEPTED: Mapping[str, Accepted] = {
    "logistic": Accepted(
        ("binary",),
        "a binary one",
        ("binary",),
        "odds",
        words="a yes or no",
        latents=True,
        expected=_logistic,
    ),
    "linear": Accepted(
        ("number", "count", "binary"),
        "a number",
        ("number",),
        settings={
            "noise_scale": (0.5, "known sd of a record around its mean, in the response's unit")
        },
        conjugate=True,
    ),
    "binomial": Accepted(
        ("counts",),
        'two counts: cbind(events, non_events), both columns of type = "count"',
        ("count",),
        "odds",
        trials=True,
        words="how many of so many: events and non-events",
        left="cbind({})",
        latents=True,
    ),
    "poisson": _COUNT._replace(words="a count", expected=_poisson),
    "negative_binomial": _COUNT._replace(
        words="a count that spreads more than a Poisson count",
        settings={
            "dispersion": (0.5, "known: the variance of a count is mean + dispersion × mean²")
        },
        latents=True,
    ),
    "multinomial": Accepted(
        ("level",),
        "a column of levels",
        ("level",),
        "odds",
        words="one of several levels",
        single=False,
    ),
    "multivariate_linear": Accepted(
        ("several", "counts"),
        "several: cbind(a, b)",
        ("number",),
        words="several numbers",
        left="cbind({})",
        settings={
            "noise_scale": (
                0.5,
                "known sd around the means, in the responses' units; one for all, or one each",
            )
        },
        conjugate=True,
        single=False,
    ),
    "survival": Accepted(
        ("survival",),
        "a time and an event: Surv(time, event)",
        ("number", "binary"),
        "hazard",
        words="a time until an event",
        left="Surv({})",
        settings={
            "cuts": ([], "times at which the baseline hazard may jump; none: it is constant")
        },
    ),
}
"""The built-in models that a formula can describe."""
