"""What each client contributed to a posterior, from released factors alone; needs no JAX.

All of it is post-processing: no client is asked again, and nothing is charged.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi.expfam import tree
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian
from fedvi.typing import Eta

__all__ = ["CLEANED", "IMPROPER", "PROJECTED", "Influence", "influence"]

CLEANED = (
    "the posterior is what the server makes of noisy sums over all clients, fold after fold: one client's "
    "last factor cannot be divided out of it"
)
IMPROPER = "without this client's factor the product is improper: it tells no mean"
PROJECTED = "the product of all factors is improper: the posterior is its projection"


class Influence(NamedTuple):
    """One client's part in a posterior.

    Attributes:
      client: its name.
      share: of the likelihood's precision, tr(J_0⁻¹J_m) / Σ_k tr(J_0⁻¹J_k): in the prior's own
        coordinates, so that units do not matter. Noise can make it negative, or above 1. None if the
        sum is not above 0, as when noise drowns it.
      shifts: by coordinate of θ, how far the mean moves in sds of the posterior if the client's factor
        is divided out; None if that cannot be said.
      reason: why there are no shifts; or empty.
    """

    client: str
    share: float | None
    shifts: tuple[float, ...] | None
    reason: str = ""


def influence(
    family: Any,
    prior: Eta,
    factors: Mapping[str, Eta],
    clients: Sequence[str],
    cleaned: bool,
) -> tuple[Influence, ...] | None:
    """Says what each client contributed: q without it is q / t_m, η − η_m.

    To first order only. t_m was fitted beside all others, and they beside t_m: had the client never
    taken part, theirs would differ too. Where the likelihood is Gaussian in θ the division is exact.

    Args:
      family: of q; only full and diagonal Gaussians have an answer, others None.
      prior: η_0, proper.
      factors: worker → η_m; the factor of the prior's own worker stays in.
      clients: whose influence is wanted.
      cleaned: whether the posterior is made from noisy factors by ``LocalSolver.stand``: then there
        are shares, of the last factors, and no shifts. Dividing a factor out and applying the same rule
        once would be another posterior: it weighs the sum against the noise of all, and of site
        release it reports a mean over folds, of which a client's earlier factors are not kept.

    Source: specs/pvi.md §7 (precision share, leave-one-centre-out) and its amendment (first order).

    >>> family = FullGaussian(1)
    >>> sites = {"a": family.isotropic(1.0, mean=1.0), "b": family.isotropic(0.5, mean=2.0)}
    >>> [
    ...     found.share
    ...     for found in influence(family, family.isotropic(1.0), sites, ["a", "b"], False)
    ... ]
    [0.2, 0.8]
    """
    if not isinstance(family, FullGaussian | DiagonalGaussian):
        return None
    traces = {name: _trace(prior.J, factors[name].J) for name in clients}
    total = sum(traces.values())
    product = tree.total(factors.values(), prior)
    proper = family.is_proper(product)

    def found(name: str) -> Influence:
        share = traces[name] / total if total > 0.0 else None
        if cleaned or not proper:
            return Influence(name, share, None, CLEANED if cleaned else PROJECTED)
        without = tree.subtract(product, factors[name])
        if not family.is_proper(without):
            return Influence(name, share, None, IMPROPER)
        (mean, sd), (mean_without, _) = family.moments(product), family.moments(without)
        return Influence(name, share, tuple(((mean_without - mean) / sd).tolist()))

    return tuple(map(found, clients))


def _trace(prior: np.ndarray, precision: np.ndarray) -> float:
    """Returns tr(J_0⁻¹J)."""
    if prior.ndim == 1:
        return float((precision / prior).sum())
    return float(np.trace(np.linalg.solve(prior, precision)))
