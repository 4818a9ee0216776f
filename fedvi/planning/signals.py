"""Estimates each private mode's ratio of signal to noise, from public numbers.

The results are neither promises nor bounds; ``signal`` lists the assumptions.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.inference import solvers as solver_kinds
from fedvi.models.outcomes.base import TYPICAL_CURVATURE
from fedvi.updates.abilities import ability
from fedvi.updates.coordinates import Foreseen, length_for
from fedvi.updates.running_means import LEFT_OUT, OVER_STEPS, squares_with, step_of

__all__ = [
    "TYPICAL_SPREAD",
    "PublicNumbers",
    "Signal",
    "defaults_of",
    "given_clip_norm",
    "is_known",
    "noise_left",
    "signal",
    "suggested_clip_norm",
    "suggested_rounds",
]

TYPICAL_SPREAD = 0.35
"""The assumed sd of a number scaled by its bounds: centred at their middle, divided by half their width.

The sd is 0.58 if the number is uniform between its bounds, 0.41 if triangular, and 0.33 if the bounds are
three sds from the mean. Bounds are stated without looking at records, so they are wide: in a made-up cohort
(docs/guides/hospital.md) age within 18 to 100 has 0.42, and an injury score within 1 to 75 has 0.34.
"""

# Few rounds are drafted if the noise of a gradient is more than this part of what all records can add.
_LOUD = 0.1
# By how much `vips` weights later answers more, if a study states nothing.
_VIPS_EMPHASIS = 2.0
# A clip norm at a gradient's typical length would shorten half of the gradients, and thereby bias them.
_ROOM = 2.0


class PublicNumbers(NamedTuple):
    """The public numbers that determine an estimated signal-to-noise ratio.

    Attributes:
      coefficients: D, the number of θ's coordinates.
      records: N, the records (or units) that a client is expected to hold.
      clients: M.
      rounds: T.
      prior_sd: s₀, the median of the prior's sds.
      curvature: w, a record's information on a coefficient whose column has variance 1, as a precision:
        1/σ² for a linear model, at most ¼ for a logistic one.
      correlated: whether q is a full Gaussian, whose clients release D(D+1)/2 curvatures instead of D.
      variance: v, of a typical column in the model: 1 if it is standardised, the square of
        ``TYPICAL_SPREAD`` if it is scaled by its bounds, at most ¼ for 0 and 1.
    """

    coefficients: int
    records: int
    clients: int
    rounds: int
    prior_sd: float = 1.0
    curvature: float = TYPICAL_CURVATURE
    correlated: bool = True
    variance: float = 1.0


class Signal(NamedTuple):
    """Signal-to-noise ratios of a mode; below about 1, noise dominates.

    Attributes:
      coefficients: the prior's sd of a coefficient ÷ the sd that noise leaves on it.
      curvature: the records' precision in a direction ÷ the apparent precision of noise alone.
      travelled: the share of the way from the prior to the answer that the rounds allow, in (0, 1].
    """

    coefficients: float
    curvature: float
    travelled: float


def signal(
    kind: str,
    numbers: PublicNumbers,
    noise_multiplier: float,
    clip_norm: float | str,
    rate: float = 1.0,
    **settings: Any,
) -> Signal:
    """Estimates signal-to-noise ratios of a private mode, P/n, from public numbers.

    Assumptions: columns have variance v and are hardly correlated, so that a record adds w·v to the
    precision of each coefficient (``PublicNumbers``); a gradient has length √(w·D), the root of the trace
    of its Fisher information if columns are standardised, which is more than for rows scaled by bounds;
    every client has the declared number of records. With fewer records or correlated columns the ratio is
    lower. Bias from clipping is not included. Nothing here is a bound.

    In the prior's coordinates (θ in its sds) the prior's precision is 1. All records add M·p to it,
    p = s₀²·N·w·v. P is the part of this that is left after clipping and T rounds; n is the sd of the noise
    on the same quantity, for one coordinate of h. So if P is large, n / P is the sd, in prior sds, that
    noise leaves on a coefficient; and if P/n < 1, the prior says more than the release. The noise on a
    precision, as a matrix, has eigenvalues up to about its sd × √(2D) (Wigner's semicircle), or × 1 for
    a diagonal; the ratio for curvatures is P divided by that.

    - `site_release`: a record's (g, c·H) has a length of √(wD + c²w²D²), so that
      a = min(1, C / that) of it is kept. The sum over M sites has noise of z·C·√M / rate per round, with
      noise multiplier z, and its average over T rounds has 4/3 ÷ (T − 2) times the variance.
      P = a·M·p·f, n = s₀·z·C·√(4M/3(T − 2)) / rate, and the curvature's noise is s₀·n / c. The floor κ
      shortens a step to P₁ / (P₁ + κ·s₀·√D·n₁), with P₁ = 1 + a·M·p and n₁ the noise of one round; f is
      the share of the way covered by T such steps, on the same average. With μ-Gaussian privacy
      z = k·√T / μ, so that n = (k/μ)·s₀·C·√(4M/3) for large T: rounds cost only time. C "auto" means
      coordinates in which columns have variance 1, the prior's sds are s₀·√v and rows are 1.5 C long; the
      floor is then 2κ.
    - `vips` of a regression also releases gradients and curvatures, of norms √(wD) and wD. With typical
      norms t_G and t_H, and shares r_G and r_H of C², a record's vector has a length of
      ℓ = √(r_G·wD/t_G² + r_H·w²D²/t_H²) and a = min(1, C / ℓ). An answer has noise of z·C·t/(rate·√r) in
      each number of a block, and a running mean of T answers S_T times that variance, about 9/(5T):
      P = a·M·p·f, n is the noise of G and n_H that of H in the prior's coordinates, times √(M·S_T). The
      ridge shortens a step to (1 + a·M·p) / (1 + a·M·p + ridge·n_H·√(2D)), from a running mean of earlier
      positions; f is the share of the way covered by T such steps.
    - `dp_optimisation`: each client optimises by itself, P = a·p, a = min(1, C / √(wD)). Answers are
      averaged within a visit, over S steps: n = s₀·z·C / (rate·√S), and z pays for all S·T steps. The
      noise on log-scales is n / s₀, and their signal is in D of D(D+1)/2 numbers.
    - changes, clipped whole: the full change from a client's records has length √(2D)·p, in h and
      J together. At most T·C of it passes in T visits, so P = M·p·f with f = min(1, T·C·G / (√(2D)·p)),
      where G is the number of parts that are clipped one by one and added up: K for
      `virtual_clients`, α for `perturbed_update`, 1 for `local_averaging`. Noise accumulates over
      visits: n = z·C·√(T·M)·W, with W = α for `perturbed_update`, 1 / K for `local_averaging` and 1 for
      `virtual_clients`; the entries of J have the same noise. The mean is J⁻¹h, so coefficients cannot
      have a better ratio than curvatures: both ratios are the curvature's.

    Args:
      kind: of the solver.
      numbers: the study's public numbers.
      noise_multiplier: z.
      clip_norm: C, or "auto" if the solver supports it.
      rate: of the sampler.
      settings: of the solver, such as ``steps``, ``parts``, ``floor`` or ``alpha``; others have the
        solver's defaults.

    Raises:
      ConfigError: there is no estimate for this solver.

    Source: docs/proofs/updates.md §2 and §5; the docstrings of the solvers and of ``noise_aware``.

    >>> adult = PublicNumbers(coefficients=108, records=2_442, clients=10, rounds=50)
    >>> found = signal("site_release", adult, 52.78, "auto")
    >>> found.coefficients > 1.0 > found.curvature
    True
    """
    estimate, settings = _known(kind), defaults_of(kind) | settings
    if clip_norm == "auto":
        scale = math.sqrt(numbers.variance)
        numbers = numbers._replace(prior_sd=numbers.prior_sd * scale, variance=1.0)
        foreseen = Foreseen(numbers.rounds, numbers.clients, numbers.records)
        size, curvature = numbers.coefficients, numbers.curvature
        clip_norm = math.sqrt(size) / length_for(size, foreseen, noise_multiplier, rate, curvature)
        settings["floor"] *= 2.0
    return estimate(numbers, noise_multiplier, float(clip_norm), rate, settings)


def suggested_clip_norm(kind: str, numbers: PublicNumbers, **settings: Any) -> float | str:
    """Returns a clip norm to try, for records that satisfy the assumptions of ``signal``.

    It is "auto" for a solver with that default. For gradients it is twice their typical length, √(wD): at
    smaller values signal and noise fall together and clipping causes bias; at larger ones only noise grows.
    `vips` measures in typical lengths, so its value is 1. Changes are so noisy that theirs is the smallest
    value with which a whole change passes in T rounds, √(2D)·p / (T·G). Rows of 0 and 1 are shorter than
    standardised ones, and need less.

    Raises:
      ConfigError: there is no estimate for this solver.

    >>> suggested_clip_norm("dp_optimisation", PublicNumbers(40, 1_000, 4, 10))
    4.0
    """
    _known(kind)
    settings = defaults_of(kind) | settings
    if settings["clip_norm"] == "auto":
        return "auto"
    if kind == "vips":
        return 1.0
    if kind == "dp_optimisation":
        return _ROOM * math.sqrt(numbers.curvature * numbers.coefficients)
    return _change(numbers) / (numbers.rounds * _gain(kind, settings))


def suggested_rounds(
    kind: str, numbers: PublicNumbers, noise_multiplier: float, rate: float = 1.0
) -> int:
    """Returns how many rounds to draft.

    Few if, with as many as usual, the noise of a whole gradient of all clients is more than a tenth of
    what all records can add to it. Then noise determines the first steps, and fewer rounds, each with less
    noise, lose less. Measurements: docs/proofs/noise_aware.md.

    Args:
      kind: of a solver with a planned number of rounds.
      noise_multiplier: calibrated for ``numbers.rounds``.
      rate: the share of records in a batch.

    >>> [suggested_rounds("site_release", PublicNumbers(6, n, 4, 12), 25.0) for n in (250, 2_500)]
    [6, 12]
    """
    able = ability(kind)
    usual = noise_multiplier * math.sqrt(able.rounds / numbers.rounds) / rate
    noise = usual * math.sqrt(numbers.coefficients * numbers.clients)
    is_loud = noise > _LOUD * numbers.records * numbers.clients
    return able.few_rounds if is_loud and able.few_rounds else able.rounds


def _fresh(
    numbers: PublicNumbers, noise: float, clip_norm: float, rate: float, settings: Mapping[str, Any]
) -> Signal:
    size, clients, rounds = numbers.coefficients, numbers.clients, numbers.rounds
    weight = 4.0 / clip_norm * math.sqrt(_odds(settings))
    length = numbers.curvature * size
    kept = min(1.0, clip_norm / math.hypot(math.sqrt(length), weight * length))
    told = kept * clients * _told(numbers)
    once = numbers.prior_sd * noise * clip_norm * math.sqrt(clients) / rate
    damped = float(settings["floor"]) * numbers.prior_sd * math.sqrt(size) * once
    left, begun = damped / (1.0 + told + damped), min(LEFT_OUT, rounds - 1)
    times = np.arange(1.0, rounds - begun + 1.0)
    weights = times / times.sum()
    travelled = 1.0 - float((weights * left ** (times + begun)).sum())
    averaged = once * math.sqrt(min(1.0, OVER_STEPS / len(times)))
    edge = numbers.prior_sd * averaged / weight * _edge(numbers)
    return Signal(told * travelled / averaged, told / edge, travelled)


def _summed(
    numbers: PublicNumbers, noise: float, clip_norm: float, rate: float, settings: Mapping[str, Any]
) -> Signal:
    size, scale = numbers.coefficients, numbers.prior_sd
    norm = settings["row_norm"] or math.sqrt(size)
    # For a binary outcome: |y − ½|·‖x‖, and at most a quarter of ‖x‖².
    typical = {"h": norm / 2.0, "J": norm**2 / 4.0} | dict(settings["typical"] or {})
    shares = {"h": 0.6, "J": 0.4} | dict(settings["shares"] or {})
    root = {name: math.sqrt(shares[name] / sum(shares.values())) for name in shares}
    length = numbers.curvature * size
    whole = math.hypot(
        root["h"] * math.sqrt(length) / typical["h"], root["J"] * length / typical["J"]
    )
    told = min(1.0, clip_norm / whole) * numbers.clients * _told(numbers)
    once = noise * clip_norm * math.sqrt(numbers.clients) / rate
    slope = scale * once * typical["h"] / root["h"]
    bend = scale**2 * once * typical["J"] / root["J"] * _edge(numbers)
    given = {"averaging": 1.0, "emphasis": _VIPS_EMPHASIS}
    given |= {name: settings[name] for name in given if settings[name] is not None}
    # The remaining distance to the answer, at the last answer and in the running mean.
    squares, left, mean = 0.0, 1.0, 1.0
    for visit in range(numbers.rounds):
        step = step_of(visit, delay=float(settings["delay"]), **given)
        squares = squares_with(step, squares)
        mean += step * (left - mean)
        damped = float(settings["ridge"]) * bend * math.sqrt(squares)
        left = mean * damped / (1.0 + told + damped)
    averaged = math.sqrt(squares)
    return Signal(told * (1.0 - left) / (slope * averaged), told / (bend * averaged), 1.0 - left)


def _climbed(
    numbers: PublicNumbers, noise: float, clip_norm: float, rate: float, settings: Mapping[str, Any]
) -> Signal:
    size = numbers.coefficients
    kept = min(1.0, clip_norm / math.sqrt(numbers.curvature * size))
    told = kept * _told(numbers)
    left = noise * clip_norm / (rate * math.sqrt(float(settings["steps"])))
    spread = math.sqrt((size + 1) / 2.0) if numbers.correlated else 1.0
    return Signal(told / (numbers.prior_sd * left), told / (left * spread), 1.0)


def _changed(kind: str) -> Callable[..., Signal]:
    def found(
        numbers: PublicNumbers,
        noise: float,
        clip_norm: float,
        rate: float,
        settings: Mapping[str, Any],
    ) -> Signal:
        passed = numbers.rounds * clip_norm * _gain(kind, settings)
        travelled = min(1.0, passed / _change(numbers))
        told = numbers.clients * _told(numbers) * travelled
        weight = {"local_averaging": 1.0 / settings.get("parts", 1), "virtual_clients": 1.0}
        left = noise * clip_norm * math.sqrt(numbers.rounds * numbers.clients)
        left *= weight.get(kind, settings.get("alpha", 1.0))
        ratio = told / (left * _edge(numbers))
        return Signal(ratio, ratio, travelled)

    return found


_SIGNALS: dict[str, Callable[..., Signal]] = {
    "dp_optimisation": _climbed,
    "local_averaging": _changed("local_averaging"),
    "perturbed_update": _changed("perturbed_update"),
    "site_release": _fresh,
    "vips": _summed,
    "virtual_clients": _changed("virtual_clients"),
}


def is_known(kind: str) -> bool:
    """Says whether ``signal`` has an estimate for a solver."""
    return kind in _SIGNALS


def _known(kind: str) -> Callable[..., Signal]:
    if kind not in _SIGNALS:
        raise errors.ConfigError(
            f"solver {kind!r} has no estimate of its signal", errors.did_you_mean(kind, _SIGNALS)
        )
    return _SIGNALS[kind]


def defaults_of(kind: str) -> dict[str, Any]:
    """Returns a solver's optional settings with their defaults."""
    known = inspect.signature(getattr(solver_kinds, kind)).parameters.values()
    return {item.name: item.default for item in known if item.default is not item.empty}


def given_clip_norm(kind: str, settings: Mapping[str, Any]) -> Any:
    """Returns the study's clip norm, or the solver's default; None for an external solver."""
    default = defaults_of(kind).get("clip_norm") if kind in solver_kinds.__all__ else None
    return settings.get("clip_norm", default)


def noise_left(rounds: int, settings: Mapping[str, Any]) -> float:
    """Returns S_T: the variance of noise in a running mean of T answers of `vips`, divided by one answer's.

    For a model whose statistics are not gradients, with noise.

    Args:
      rounds: T, at least 1.
      settings: the study's ``averaging``, ``delay`` and ``emphasis``; defaults are 1, 1 and 0.

    >>> noise_left(4, {}), noise_left(4, {"averaging": 0.0})
    (0.25, 1.0)
    """
    given = {"averaging": 1.0, "delay": 1.0, "emphasis": 0.0}
    given |= {name: float(settings[name]) for name in given if settings.get(name) is not None}
    squares = 0.0
    for visit in range(rounds):
        step = step_of(visit, **given)
        squares = squares_with(step, squares)
    return squares


def _told(numbers: PublicNumbers) -> float:
    """Returns p: the precision that a client's records add to the prior's, which is 1."""
    return numbers.prior_sd**2 * numbers.records * numbers.curvature * numbers.variance


def _change(numbers: PublicNumbers) -> float:
    """Returns the length of the full change from a client's records, in the prior's coordinates.

    J is p·I, of norm p·√D; h is J times a coefficient vector about as long as the prior's, √D.
    """
    return math.sqrt(2.0 * numbers.coefficients) * _told(numbers)


def _gain(kind: str, settings: Mapping[str, Any]) -> float:
    gains = {"virtual_clients": "parts", "perturbed_update": "alpha"}
    return float(settings[gains[kind]]) if kind in gains else 1.0


def _edge(numbers: PublicNumbers) -> float:
    return math.sqrt(2.0 * numbers.coefficients) if numbers.correlated else 1.0


def _odds(settings: Mapping[str, Any]) -> float:
    share = float(settings["curvature_share"])
    return share / (1.0 - share)
