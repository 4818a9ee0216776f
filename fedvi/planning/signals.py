"""Estimates each private mode's ratio of signal to noise, from public numbers.

Estimates, not promises, and no bounds: ``signal`` says what is assumed.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.inference import solvers as solver_kinds
from fedvi.models.outcomes.base import TYPICAL_CURVATURE
from fedvi.updates.coordinates import LENGTH
from fedvi.updates.statistics import step_of

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
]

TYPICAL_SPREAD = 0.35
"""The sd of a number that is scaled by its bounds: its centre is their middle, its scale half their width.

A number that fills its bounds evenly has 0.58, a triangle over them 0.41, and one whose bounds are three
sds from the mean 0.33. Bounds are stated without looking at records, and so are wide: in a made-up cohort
(docs/guides/hospital.md) age within 18 to 100 has 0.42, and an injury score within 1 to 75 has 0.34.
"""

# An average of `site_release` leaves out two rounds and weighs the t-th that follows by about t: its
# variance is 4/3 that of equal weights.
_LEFT_OUT, _SPREAD = 2, 4.0 / 3.0
# By how much later answers of `vips` weigh more, where a study does not say.
_VIPS_EMPHASIS = 2.0
# A clip norm at the typical length of a gradient shortens half of them, which biases what they say.
_ROOM = 2.0


class PublicNumbers(NamedTuple):
    """What a signal-to-noise ratio is estimated from; nothing else of a study matters to it.

    Attributes:
      coefficients: D, the number of θ's coordinates.
      records: N, the declared largest number of records (or units) of a client.
      clients: M.
      rounds: T.
      prior_sd: s₀, the median of the prior's sds.
      curvature: w, what a record tells of a coefficient whose column has variance 1, as a precision:
        1/σ² of a linear model, ¼ at most of a logistic one.
      correlated: whether q is a full Gaussian, of which D(D+1)/2 curvatures leave instead of D.
      variance: v, of a typical column as the model sees it: 1 if it is standardised, the square of
        ``TYPICAL_SPREAD`` if it is scaled by its bounds, ¼ at most of 0 and 1.
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
    """How far the signal stands out of the noise; about 1 is where it drowns.

    Attributes:
      coefficients: the prior's sd of a coefficient ÷ the sd that noise leaves on it.
      curvature: what the records tell of a direction's precision ÷ what noise looks like there.
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

    What is assumed: columns of variance v that are hardly correlated, so that a record adds w·v to
    the precision of each coefficient (``PublicNumbers``); a gradient of length √(w·D), the root of the
    trace of its Fisher information if columns are standardised, which is more than rows that are scaled
    by bounds have; as many records at every client as declared. Fewer records, and columns that go
    together, drown sooner. What clipping biases is not counted. Nothing here is a bound.

    In the prior's coordinates (θ in its sds) the prior's precision is 1. All records add M·p to it,
    p = s₀²·N·w·v. Of that, P is left after clipping and in T rounds; n is the sd of the noise on the
    same numbers, of h in a coordinate. So n / P is the sd, in the prior's sds, that noise leaves on
    a coefficient where P is large, and where P/n < 1 the prior says more than the release does. The
    noise on a precision, seen as a matrix, has eigenvalues up to about its sd × √(2D) (Wigner's
    semicircle), × 1 for a diagonal; the ratio of curvatures is P to that.

    - `site_release`: a record's (g, c·H) has a length of √(wD + c²w²D²), so that
      a = min(1, C / that) of it is kept. The sum over M sites has noise of z·C·√M / rate in a
      round, z the noise multiplier, and its average over T rounds 4/3 ÷ (T − 2) times the variance.
      P = a·M·p·f, n = s₀·z·C·√(4M/3(T − 2)) / rate, that of the curvature s₀·n / c. The floor κ shortens a
      step to P₁ / (P₁ + κ·s₀·√D·n₁), P₁ = 1 + a·M·p and n₁ the noise of one round; f is how far T
      such steps come, on the same average. With μ-Gaussian privacy z = k·√T / μ, so that
      n = (k/μ)·s₀·C·√(4M/3) where T is large: rounds cost nothing but time. C "auto" stands for
      coordinates in which columns have variance 1, the prior's sds are s₀·√v and rows are 1.5 C long; the
      floor there is 2κ.
    - `vips` of a regression: gradients and curvatures too, of norms √(wD) and wD beside the typical ones
      t_G and t_H, with shares r_G and r_H of C², so that a record's vector has a length of
      ℓ = √(r_G·wD/t_G² + r_H·w²D²/t_H²) and a = min(1, C / ℓ). An answer has noise of z·C·t/(rate·√r) in
      each number of a block, and T of them in a running mean S_T times the variance, about 9/(5T):
      P = a·M·p·f, n that of G and n_H that of H in the prior's coordinates, times √(M·S_T). The ridge
      shortens a step to (1 + a·M·p) / (1 + a·M·p + ridge·n_H·√(2D)), from a running mean of where one
      was; f is how far T such steps come.
    - `dp_optimisation`: a client's climb must find its own way, P = a·p, a = min(1, C / √(wD)); the
      answers are averaged within a visit, over S steps: n = s₀·z·C / (rate·√S), and z pays for all
      S·T. On the log-scales noise is n / s₀, and their signal stands in D of D(D+1)/2 numbers.
    - changes, clipped whole: the change that a client's records ask for is √(2D)·p long, in h and
      J together. In T visits T·C of it passes, so P = M·p·f with f = min(1, T·C·G / (√(2D)·p)),
      where G is the number of parts that are clipped one by one and added up: K for
      `virtual_clients`, α for `perturbed_update`, 1 for `local_averaging`. Noise adds up from visit
      to visit: n = z·C·√(T·M)·W, W being α for `perturbed_update`, 1 / K for `local_averaging`
      and 1 for `virtual_clients`; the entries of J have the same noise. The mean is J⁻¹h, so that
      coefficients stand out no more than curvatures do: both ratios are that of the curvature.

    Args:
      kind: of the solver.
      numbers: what is public of the study.
      noise_multiplier: z.
      clip_norm: C, or "auto" where a solver takes that.
      rate: of the sampler.
      settings: of the solver, such as ``steps``, ``parts``, ``floor`` or ``alpha``; those left out
        have its defaults.

    Raises:
      ConfigError: nothing is known of such a solver.

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
        clip_norm = math.sqrt(numbers.coefficients * numbers.curvature / TYPICAL_CURVATURE) / LENGTH
        settings["floor"] *= 2.0
    return estimate(numbers, noise_multiplier, float(clip_norm), rate, settings)


def suggested_clip_norm(kind: str, numbers: PublicNumbers, **settings: Any) -> float | str:
    """Returns a clip norm to try: what suits records that are as ``signal`` assumes.

    "auto" of a solver whose default that is. For gradients it is twice their typical length, √(wD): below
    that length signal and noise fall together and clipping biases what it shortens; above, noise alone
    grows. `vips` measures in typical lengths, and takes one. Changes are so noisy that there it is the
    least that lets all of one pass in T rounds, √(2D)·p / (T·G). Rows of 0 and 1 are shorter than
    standardised ones, and ask for less.

    Raises:
      ConfigError: nothing is known of such a solver.

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
    left, begun = damped / (1.0 + told + damped), min(_LEFT_OUT, rounds - 1)
    times = np.arange(1.0, rounds - begun + 1.0)
    weights = times / times.sum()
    travelled = 1.0 - float((weights * left ** (times + begun)).sum())
    averaged = once * math.sqrt(min(1.0, _SPREAD / len(times)))
    edge = numbers.prior_sd * averaged / weight * _edge(numbers)
    return Signal(told * travelled / averaged, told / edge, travelled)


def _summed(
    numbers: PublicNumbers, noise: float, clip_norm: float, rate: float, settings: Mapping[str, Any]
) -> Signal:
    size, scale = numbers.coefficients, numbers.prior_sd
    norm = settings["row_norm"] or math.sqrt(size)
    # Of a yes or no: |y − ½|·‖x‖, and a quarter of ‖x‖² at most.
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
    # The way that is left, at the last answer and in the running mean.
    squares, left, mean = 0.0, 1.0, 1.0
    for visit in range(numbers.rounds):
        step = step_of(visit, delay=float(settings["delay"]), **given)
        squares = (1.0 - step) ** 2 * squares + step**2
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
    """Returns the settings of a solver that a study may leave out."""
    known = inspect.signature(getattr(solver_kinds, kind)).parameters.values()
    return {item.name: item.default for item in known if item.default is not item.empty}


def given_clip_norm(kind: str, settings: Mapping[str, Any]) -> Any:
    """Returns the clip norm as a study has it, or the solver's default; None of a solver from outside."""
    default = defaults_of(kind).get("clip_norm") if kind in solver_kinds.__all__ else None
    return settings.get("clip_norm", default)


def noise_left(rounds: int, settings: Mapping[str, Any]) -> float:
    """Returns S_T: the variance of noise in a running mean of T answers of `vips`, that of one being 1.

    Of a model whose statistics are no gradients, under noise.

    Args:
      rounds: T, at least 1.
      settings: ``averaging``, ``delay`` and ``emphasis`` as a study gives them; those left out are 1, 1
        and 0.

    >>> noise_left(4, {}), noise_left(4, {"averaging": 0.0})
    (0.25, 1.0)
    """
    given = {"averaging": 1.0, "delay": 1.0, "emphasis": 0.0}
    given |= {name: float(settings[name]) for name in given if settings.get(name) is not None}
    squares = 0.0
    for visit in range(rounds):
        step = step_of(visit, **given)
        squares = (1.0 - step) ** 2 * squares + step**2
    return squares


def _told(numbers: PublicNumbers) -> float:
    """p: the precision that a client's records add to the prior's, which is 1."""
    return numbers.prior_sd**2 * numbers.records * numbers.curvature * numbers.variance


def _change(numbers: PublicNumbers) -> float:
    """How long the change is that a client's records ask for, in the prior's coordinates.

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
