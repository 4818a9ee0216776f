"""Computes each client's contribution to a posterior, from released factors alone; needs no JAX.

All of it is post-processing: no client is asked again, and nothing is charged.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi.expfam import tree
from fedvi.expfam.base import Gaussian
from fedvi.server.core.state import Update
from fedvi.typing import PRIOR, Eta
from fedvi.updates.base import Fold, Standing
from fedvi.updates.coordinates import Coordinates
from fedvi.updates.noise_aware import anew

__all__ = [
    "ALONE",
    "CLEANED",
    "IMPROPER",
    "PROJECTED",
    "Influence",
    "as_rows",
    "influence",
    "refolded",
    "trace_noise",
]

Told = Callable[[str], tuple[np.ndarray, np.ndarray] | None]
"""Client → two arrays [D], or None where nothing can be said of it."""

# Threshold in sds of the noise in the sum of all precisions.
_CLEAR = 4.0

ALONE = "no other client has answered"
CLEANED = (
    "the posterior is what the server makes of noisy sums over all clients, fold after fold: one client's "
    "last factor cannot be divided out of it"
)
IMPROPER = "without this client's factor the product is improper and has no mean"
PROJECTED = "the product of all factors is improper: the posterior is its projection"


class Influence(NamedTuple):
    """One client's contribution to a posterior.

    Attributes:
      client: its name.
      share: of the likelihood's precision, tr(J_0⁻¹J_m) / Σ_k tr(J_0⁻¹J_k): in the prior's own
        coordinates, so that units do not matter. Noise can make it negative, or above 1. None if the
        sum is not above 0, as when noise dominates it.
      shifts: by coordinate of θ, how far the mean moves, in posterior sds, if the client's factor is
        divided out, or left out of the noisy factors that the server combines; None if unknown.
      reason: why there are no shifts; or empty.
      alone: mean and sd by coordinate of the prior combined with this client's factor only; None if
        that product is improper.
    """

    client: str
    share: float | None
    shifts: tuple[float, ...] | None
    reason: str = ""
    alone: tuple[tuple[float, float], ...] | None = None


def influence(
    family: Any,
    prior: Eta,
    factors: Mapping[str, Eta],
    clients: Sequence[str],
    cleaned: bool,
    without: Told | None = None,
    trace_sd: float = 0.0,
    own: Told | None = None,
) -> tuple[Influence, ...] | None:
    """Computes each client's contribution: q without client m is q / t_m, η − η_m.

    To first order only: t_m was fitted given all other factors, and they given t_m, so that without the
    client the others would differ too. Where the likelihood is Gaussian in θ the division is exact.

    Args:
      family: of q; full, diagonal and low-rank Gaussians have an answer, others None.
      prior: η_0, proper.
      factors: worker → η_m; the factor of the prior's own worker stays in.
      clients: whose influence is wanted.
      cleaned: whether the posterior is made from noisy factors by ``LocalSolver.stand``. Then shares are
        of the last factors, and shifts come from ``without``.
      without: client → (mean without it − mean with it, sd), [D] both, or None; see ``refolded``. If
        omitted where ``cleaned``, there are no shifts, since that rule's posterior without a client is
        not q divided by the client's factor.
      trace_sd: sd of the noise in each tr(J_0⁻¹J_m), see ``trace_noise``. Shares are given if their sum
        is at least four sds of its noise: with n clients, a share then has an sd of about 1/(4√n) at most.
      own: client → mean and sd of its own factor with the prior, from ``refolded``; needed where
        ``cleaned``.

    Source: the factors' precisions add up; to first order in a client's factor for the shifts.

    >>> from fedvi.expfam import full_gaussian
    >>> family = full_gaussian(1)
    >>> sites = {"a": family.isotropic(1.0, mean=1.0), "b": family.isotropic(0.5, mean=2.0)}
    >>> [
    ...     found.share
    ...     for found in influence(family, family.isotropic(1.0), sites, ["a", "b"], False)
    ... ]
    [0.2, 0.8]
    """
    if not isinstance(family, Gaussian):
        return None
    traces = {name: float(family.trace(prior, factors[name])) for name in clients}
    total = sum(traces.values())
    if trace_sd > 0.0 and total < _CLEAR * trace_sd * math.sqrt(len(traces)):
        total = 0.0
    product = tree.total(factors.values(), prior)
    proper = family.is_proper(product)

    def said_alone(name: str) -> tuple[tuple[float, float], ...] | None:
        if cleaned:
            told = None if own is None else own(name)
        else:
            q = tree.add(prior, factors[name])
            told = family.moments(q) if family.is_proper(q) else None
        if told is None or not np.isfinite(told).all():
            return None
        return tuple(zip(*(np.asarray(part).tolist() for part in told), strict=True))

    def found(name: str) -> Influence:
        share = traces[name] / total if total > 0.0 else None
        if cleaned:
            if without is None:
                return Influence(name, share, None, CLEANED)
            moved = without(name)
            if moved is None:
                return Influence(name, share, None, ALONE)
            return Influence(name, share, tuple((moved[0] / moved[1]).tolist()))
        if not proper:
            return Influence(name, share, None, PROJECTED)
        rest = tree.subtract(product, factors[name])
        if not family.is_proper(rest):
            return Influence(name, share, None, IMPROPER)
        (mean, sd), (mean_without, _) = family.moments(product), family.moments(rest)
        return Influence(name, share, tuple(((mean_without - mean) / sd).tolist()))

    return tuple(found(name)._replace(alone=said_alone(name)) for name in clients)


def as_rows(
    found: Sequence[Influence], names: Sequence[str], told: Callable[[Any, Any], Any]
) -> list[dict[str, Any]]:
    """Returns plain values for files, by client.

    Args:
      found: of each client.
      names: of the coordinates.
      told: maps mean and sd by coordinate, [D] each, to those that are told; shifts in sds stay.
    """

    def alone(row: Influence) -> list[dict[str, float]] | None:
        if row.alone is None:
            return None
        mean, sd = told(*np.array(row.alone).T)
        return [
            {"mean": middle, "sd": spread}
            for middle, spread in zip(mean.tolist(), sd.tolist(), strict=True)
        ]

    return [
        {
            "client": row.client,
            "precision_share": row.share,
            "shift_in_sds": row.shifts and dict(zip(names, row.shifts, strict=True)),
            "reason": row.reason,
            "alone": alone(row),
        }
        for row in found
    ]


def trace_noise(stand: Any, prior: Any, coordinates: Coordinates | None) -> float:
    """Returns the sd of the noise in a client's tr(J_0⁻¹J_m), if ``stand`` knows it; else 0.

    The noise has the same sd in each coordinate of svec(J_m) where the clients computed it: in the
    coordinates of a survey, if there was one.
    """
    entry = float(getattr(stand, "keywords", {}).get("curvature_sd", 0.0))
    if entry == 0.0:
        return 0.0
    at = prior if coordinates is None else coordinates.inward(prior)
    return entry * float(np.linalg.norm(np.linalg.inv(at.J)))


def refolded(
    family: Any,
    stand: Callable[[Any, Fold, Standing | None], Standing],
    prior: Eta,
    factors: Mapping[str, Eta],
    standing: Standing | None,
    history: Sequence[Update],
) -> tuple[Told, Told]:
    """Returns ``without`` and ``own`` of ``influence``, where ``stand`` makes the posterior.

    Without a client: the server's rule applied to the others' last factors, as `fedvi remove` would at the
    end, minus the same rule applied to all factors. Both start from what was last handed out, since
    earlier factors of a mean over folds are not kept, and both have the same noise of the others. To
    first order: the others answered posteriors that depended on this client, and the client's own last
    noise is in the shift. None if no other client answered.

    Its own: the rule applied to its factor alone. Its last answer depended on a posterior that included
    the others; without them it would differ. None for a client that never answered.

    Args:
      family: of q.
      stand: ``LocalSolver.stand``.
      prior: η_0.
      factors: worker → η_m, of the prior's own worker too.
      standing: of the last fold; None if no client answered.
      history: all folds.
    """
    removed = {name for update in history for name in update.removed}
    answered = {name for update in history for name in update.clients} - removed - {PRIOR}

    def moments(clients: set[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and sd of the server's posterior from the last factors of some clients."""
        assert standing is not None
        counts = (
            update.damping**2 * len(clients.intersection(update.clients)) for update in history
        )
        own = {name: factors[name] for name in sorted(clients)}
        known = tree.total((factors[name] for name in (PRIOR,) if name in factors), prior)
        # As if all had answered in this fold, since a standing over several folds takes shorter steps.
        unit = np.eye(family.size)
        asked = {
            name: family.from_moments(site.J, unit)
            for name, site in standing.sites.items()
            if name in clients
        }
        fold = Fold(prior, known, tree.total(own.values(), known), own, asked, 1.0)
        found = stand(family, fold, anew(standing, clients, sum(counts)))
        mean, sd = family.moments(found.reported)
        return np.asarray(mean), np.asarray(sd)

    def without(name: str) -> tuple[np.ndarray, np.ndarray] | None:
        others = answered - {name}
        if standing is None or not others:
            return None
        sd = np.asarray(family.moments(standing.reported)[1])
        if name not in answered:
            return np.zeros_like(sd), sd
        return moments(others)[0] - moments(answered)[0], sd

    def own(name: str) -> tuple[np.ndarray, np.ndarray] | None:
        return None if standing is None or name not in answered else moments({name})

    return without, own
