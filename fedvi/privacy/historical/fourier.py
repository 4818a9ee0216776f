"""Wraps the package fourier-accountant, to compare its ε with ours.

Historical, not a guarantee: see `fedvi.privacy.historical`.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.events import Event, Relation, check_relation
from fedvi.privacy.historical.releases import LABEL, Step, in_short, standard_steps

__all__ = ["Fourier", "fourier"]

_BASE = 2**-40  # stands for ε = 0 where a privacy profile is evaluated


@dataclass(frozen=True)
class Fourier:
    """The package fourier-accountant, within the range where its grids agree; made by `fourier`.

    Historical, not a guarantee: it bounds no error, prices only one direction of ``add_remove``, and
    ignores overflow of batches. Outside its range this raises, since the package would silently be wrong
    by a factor in either direction. We invert its δ ourselves, because its own search for ε has an
    absolute tolerance of 1e-10 and may never stop.

    Source: Koskela, Jälkö and Honkela (2020), arXiv:1906.03049, Sections 5.1 and 5.2; the package,
    version 0.12.
    """

    relation: Relation
    name: ClassVar[str] = "fourier"
    label: ClassVar[str] = LABEL

    def supports(self, event: Event) -> bool:
        """Whether all releases are Poisson-sampled standard sums, at a rate below 1."""
        found = standard_steps(event, self.relation)
        return found is not None and all(rate < 1 for _, rate, _ in found)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the claimed ε at ``delta``, of 1e-8 or more. Takes seconds.

        Raises:
          UnsupportedEvent: the event or ``delta`` is outside the safe range; the hint says what to use.
        """
        if not 0 < delta < 1:
            raise ConfigError(f"delta is {delta}, expected above 0 and below 1")
        found = standard_steps(event, self.relation)
        if found is None or any(rate == 1 for _, rate, _ in found):
            raise UnsupportedEvent(
                f"method fourier has no formula for {in_short(event)}",
                hint="it knows Poisson-sampled Gaussian sums at a rate below 1; `pld` has a "
                "closed form for full batches, and a bound for batches of a fixed size",
            )
        if not found:
            return 0.0
        if delta < _LEAST_DELTA:
            raise UnsupportedEvent(
                f"method fourier is unreliable at delta {delta:g}, expected {_LEAST_DELTA:g} or "
                "more: the rounding of its transforms is of that order",
                hint="use `pld`, which bounds its rounding",
            )
        if self.relation == "substitute":
            for noise, rate, _ in found:
                if rate * math.exp(-0.5 / noise**2) < 1e-7:
                    raise UnsupportedEvent(
                        f"method fourier cuts off the law at noise multiplier {noise:g} and rate "
                        f"{rate:g}",
                        hint="use `pld`",
                    )
        return _fourier_epsilon(found, self.relation, delta)


def fourier(relation: Relation) -> Fourier:
    """Wraps fourier-accountant: its relation R for add_remove, its S for substitute."""
    check_relation(relation)
    return Fourier(relation)


_LEAST_DELTA = 1e-8
_HALF_WIDTHS = (5.0, 10.0, 20.0, 40.0)  # of the window of privacy losses
_POINTS = (500_000, 1_500_000)
_AGREEMENT = 0.01  # of δ between two grids


def _fourier_epsilon(found: tuple[Step, ...], relation: Relation, delta: float) -> float:
    """Uses the first window and grid whose result a wider and finer one confirms."""
    for points in _POINTS:
        tried = 0
        for half_width in _HALF_WIDTHS:
            # The density of one step's loss is about rate ÷ noise wide; the grid must resolve it.
            width = min(rate / max(1.0, noise) for noise, rate, _ in found)
            if tried == 2 or 2 * half_width / points > width / 20:
                break
            excess = functools.partial(_log_excess, found, relation, delta, points, half_width)
            finer = functools.partial(
                _log_excess, found, relation, delta, 2 * points, 1.25 * half_width
            )
            try:
                epsilon = _root(excess, half_width)
                if epsilon is None:
                    continue
                tried += 1
                if abs(finer(epsilon) - excess(epsilon)) <= _AGREEMENT:
                    return 0.0 if epsilon == _BASE else epsilon
            except (ValueError, OverflowError):
                continue  # the package returned infinity or NaN
    raise UnsupportedEvent(
        "method fourier does not settle: no window up to "
        f"{_HALF_WIDTHS[-1]:g} with up to {_POINTS[-1]:,} points gives the same delta as a finer "
        f"one, within {_AGREEMENT:.0%}",
        hint="epsilon is beyond its window, or a small rate or noise makes a density that its grid "
        "cannot resolve; use `pld`",
    )


def _root(excess: Callable[[float], float], half_width: float) -> float | None:
    """Returns the ε that meets δ: `_BASE` for zero, None if it is beyond half of the window."""
    from scipy import optimize

    # Losses beyond the window wrap round to its other end.
    high = half_width / 2
    if excess(high) > 0:
        return None
    if excess(_BASE) <= 0:
        return _BASE
    return float(optimize.brentq(excess, _BASE, high, rtol=1e-5))


def _log_excess(
    found: tuple[Step, ...],
    relation: Relation,
    delta: float,
    points: int,
    half_width: float,
    epsilon: float,
) -> float:
    import fourier_accountant
    import numpy as np

    delta_at: Callable[..., float] = (
        fourier_accountant.get_delta_R
        if relation == "add_remove"
        else fourier_accountant.get_delta_S
    )
    with np.errstate(all="ignore"):
        value = float(
            delta_at(
                epsilon,
                np.array([noise for noise, _, _ in found]),
                np.array([rate for _, rate, _ in found]),
                np.array([count for _, _, count in found]),
                points,
                half_width,
            )
        )
    if math.isnan(value):
        raise ValueError("delta is not a number")
    return math.log(max(value, 1e-300) / delta)
