"""What the built-in solvers can do, by kind: for whoever asks before one is built, and without JAX."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["SOLVERS", "Ability", "ability"]


class Ability(NamedTuple):
    """What a solver can do.

    Attributes:
      private: whether it adds noise.
      of_clients: whether it clips all that a client says as one, so that a client can be what is protected.
      of_statistics: whether it takes conjugate-exponential models, which no other solver does.
      tells_derivatives: whether its answers are the likelihood's expected derivatives at the optimum that a
        client found, without noise.
      unheld: what noise does that its reported intervals do not hold, in words; empty if they hold it.
      conjugate: whether it takes models alone whose likelihood is Gaussian in θ.
      single: whether it takes models alone with one linear predictor a record.
      words: what it is, for a draft of a study.
      strength: why its signal may stand out of the noise most, for advice.
      rounds: that such a draft plans; 0 where a study needs more than a draft asks for.
      settings: keys that a draft writes besides → (value, why).
    """

    private: bool = True
    of_clients: bool = False
    of_statistics: bool = False
    tells_derivatives: bool = False
    unheld: str = ""
    conjugate: bool = False
    single: bool = False
    words: str = ""
    strength: str = ""
    rounds: int = 0
    settings: Mapping[str, tuple[Any, str]] = MappingProxyType({})


SOLVERS: Mapping[str, Ability] = {
    "site_release": Ability(
        words="a noised sum of gradients and curvatures: suits regressions",
        strength="every visit releases fresh sums at the common q, whose noise averages out over rounds "
        "and clients",
        # Fresh sums average their noise out over rounds; noise on changes adds up.
        rounds=20,
    ),
    "dp_optimisation": Ability(
        unheld="intervals do not hold the noise of the descent: they are too wide where steps are "
        "mostly noise, and may be far too narrow elsewhere",
        words="DP-SGD at each site",
        strength="it takes gradients of any model, and what records are too few to tell stays as it was",
        rounds=5,
        settings={"steps": (50, "local steps of an answer")},
    ),
    "perturbed_update": Ability(
        of_clients=True,
        words="the whole change of a site, clipped and noised once",
        strength="it releases one change a visit",
        rounds=5,
    ),
    "local_averaging": Ability(strength="the noise on a mean over parts falls with their number"),
    "virtual_clients": Ability(
        strength="the signal grows with the number of parts, and noise is added once"
    ),
    "vips": Ability(
        of_statistics=True,
        unheld="intervals do not hold the noise of the sums, and are too narrow where it is large",
        strength="every visit releases sums of gradients and curvatures, whose noise averages out in a "
        "running mean",
    ),
    "exact": Ability(
        private=False,
        tells_derivatives=True,
        conjugate=True,
        words="closed form: one visit is enough",
        rounds=2,
    ),
    "glm": Ability(
        private=False,
        tells_derivatives=True,
        single=True,
        words="deterministic: quadrature and Newton steps",
        rounds=10,
    ),
    "gradient": Ability(private=False, words="any model, by reparameterised gradients", rounds=10),
}
"""Those of which there is something to say, in the order in which a draft of a study prefers them."""


def ability(kind: str) -> Ability:
    """Returns what is known of a solver; of one of a study's own, that it can do nothing of this."""
    return SOLVERS.get(kind, Ability())
