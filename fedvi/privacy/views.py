"""Prices the summed noise of several clients, by who sees their answers.

Each of M clients adds Gaussian noise with a share of the variance, so that the sum of the answers
carries the noise that was asked for. How much of it stands between a client and an observer depends
on what the observer sees, on how many clients answered, and on how many of them collude.
"""

import math
from typing import Literal, TypeAlias

from fedvi.errors import ConfigError, PrivacyError, did_you_mean
from fedvi.privacy.events import Gaussian

__all__ = ["VIEWS", "Unit", "View", "noise_seen", "share", "view_event"]

View: TypeAlias = Literal["message", "aggregate", "secure_aggregate"]
VIEWS: tuple[View, ...] = ("message", "aggregate", "secure_aggregate")
Unit: TypeAlias = Literal["client", "record"]
_UNITS: tuple[Unit, ...] = ("client", "record")


def share(noise_multiplier: float, clients: int, least_reporting: int | None = None) -> float:
    """Returns the noise multiplier at which each client adds its own noise.

    σ ÷ √k_min: k_min independent shares sum to noise of multiplier σ. Without a floor k_min = M,
    and every client that drops out is missed; with one, k_min answers suffice.

    Args:
      noise_multiplier: σ of the sum, noise std ÷ clip norm of one client's answer.
      clients: M, all that take part.
      least_reporting: k_min, the number of answers below which a round is given up; M if None.

    >>> share(4.0, 16)
    1.0
    >>> share(4.0, 16, least_reporting=4)
    2.0
    """
    _check_noise(noise_multiplier)
    _check_count("clients", clients, 1, "1 or more")
    if least_reporting is None:
        least_reporting = clients
    _check_floor(clients, least_reporting)
    return noise_multiplier / math.sqrt(least_reporting)


def noise_seen(
    noise_multiplier: float,
    view: str,
    clients: int,
    *,
    reporting: int | None = None,
    colluding: int = 0,
    least_reporting: int | None = None,
    own_noise_fed_back: bool = False,
) -> float:
    """Returns the noise multiplier that stands between one client's answer and the observer.

    Guarantee: with s the `share` of each client and k answers,

    - "message": the observer sees single answers, so s, however many others answer;
    - "aggregate": a trusted party publishes the sum only, to observers who added none of the
      noise, so s·√k;
    - "secure_aggregate": the observer sees the sum only, and t of the clients that answered tell
      it their noise and answers, which it subtracts, so s·√(k − t).

    The noises are independent and Gaussian, so what is left of them is Gaussian with the sum of the
    variances. The last two hold only if no answer depends on its client's own earlier noise by any
    way but the published sums. Perturbed factors break that: then the noise of one round shows up
    in the next, the two sums together tell more than both apart, and these views are refused.

    Args:
      noise_multiplier: σ of the sum if all ``clients`` answer, or ``least_reporting`` of them
        where that is given.
      view: who sees what.
      clients: M, all that take part.
      reporting: k, how many answered; M if None. The number is public.
      colluding: t, how many of those that answered work with the observer; of the others, at
        least one is left: the client whose privacy is priced.
      least_reporting: k_min; with fewer answers the round must be given up, its sum unpublished.
      own_noise_fed_back: whether an answer depends on its client's earlier noise otherwise than
        through what was published: on a perturbed factor that the client keeps, for one.

    Raises:
      ConfigError: a number is outside its range.
      PrivacyError: the view is not private as asked for: too few answered, or noise is fed back.

    >>> round(noise_seen(4.0, "secure_aggregate", 10, colluding=3), 4)
    3.3466
    """
    if view not in VIEWS:
        raise ConfigError(
            f"view is {view!r}, expected one of {', '.join(VIEWS)}",
            hint=did_you_mean(str(view), VIEWS),
        )
    single = share(noise_multiplier, clients, least_reporting)
    answers = clients if reporting is None else reporting
    _check_count("reporting", answers, 1, f"1 to `clients`, {clients}", clients)
    _check_count("colluding", colluding, 0, "0 or more")
    if view == "message":
        return single
    if least_reporting is not None and answers < least_reporting:
        raise PrivacyError(
            f"reporting is {answers}, expected at least `least_reporting`, {least_reporting}",
            hint="give the round up without publishing its sum, or wait for more answers",
        )
    if own_noise_fed_back:
        raise PrivacyError(
            f"view is {view!r}, but each client's answer depends on its own earlier noise",
            hint='price it as "message", or let clients update from published sums only',
        )
    if view == "aggregate":
        if colluding > 0:
            raise ConfigError(
                f"colluding is {colluding}, expected 0 under view 'aggregate'",
                hint="clients that share their noise with the observer are priced by "
                "'secure_aggregate'",
            )
        return single * math.sqrt(answers)
    if colluding >= answers:
        raise ConfigError(
            f"colluding is {colluding}, expected below `reporting`, {answers}",
            hint="the client whose privacy is priced is among those that answered",
        )
    return single * math.sqrt(answers - colluding)


def view_event(
    noise_multiplier: float,
    view: str,
    clients: int,
    unit: str,
    *,
    reporting: int | None = None,
    colluding: int = 0,
    least_reporting: int | None = None,
    own_noise_fed_back: bool = False,
) -> Gaussian:
    """Returns the event of one round for one client, as the observer of ``view`` has it.

    Guarantee: each answer is one clipped vector of norm C or less. Unit "client": to remove a
    client is to replace its answer by zero while its noise stays, so the sum moves by C, and to
    substitute it by 2·C. Unit "record": one record decides where in the ball the whole clipped
    answer lies, so it moves by 2·C under either relation.

    Args and errors: as of `noise_seen`; ``unit``, "client" or "record", is what is protected.

    >>> view_event(4.0, "message", 16, "record")
    Gaussian(noise_multiplier=1.0, add_remove=2.0, substitute=2.0)
    """
    if unit not in _UNITS:
        raise ConfigError(
            f"unit is {unit!r}, expected one of {', '.join(_UNITS)}",
            hint=did_you_mean(str(unit), _UNITS),
        )
    seen = noise_seen(
        noise_multiplier,
        view,
        clients,
        reporting=reporting,
        colluding=colluding,
        least_reporting=least_reporting,
        own_noise_fed_back=own_noise_fed_back,
    )
    return Gaussian(seen, add_remove=1.0 if unit == "client" else 2.0, substitute=2.0)


def _check_noise(noise_multiplier: float) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise ConfigError(
            f"noise_multiplier is {noise_multiplier}, expected a finite number above 0"
        )


def _check_floor(clients: int, least_reporting: int) -> None:
    _check_count("least_reporting", least_reporting, 1, f"1 to `clients`, {clients}", clients)


def _check_count(
    field: str, value: int, least: int, expected: str, most: int | None = None
) -> None:
    if value < least or (most is not None and value > most):
        raise ConfigError(f"{field} is {value}, expected {expected}")
