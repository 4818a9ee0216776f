"""Abilities of the built-in solvers, by kind; needs neither a built solver nor JAX."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["SOLVERS", "Ability", "ability"]


class Ability(NamedTuple):
    """What a solver can do.

    Attributes:
      private: whether it adds noise.
      of_clients: whether it clips a client's whole answer as one, so that the client can be the unit.
      of_statistics: whether it takes conjugate-exponential models, which no other solver does.
      tells_derivatives: whether its answers are the likelihood's expected derivatives at the client's
        optimum, without noise.
      unheld: the noise that its reported intervals leave out, in words; empty if they include all of it.
      conjugate: whether it takes only models whose likelihood is Gaussian in θ.
      single: whether it takes only models with one linear predictor a record.
      words: what it is, for a drafted study.
      strength: why its signal may stand out of the noise most, for advice.
      rounds: how many rounds a drafted study plans; 0 where a draft does not ask for all that it needs.
      few_rounds: the same where noise is large beside all records, see ``signals.suggested_rounds``.
      settings: further keys of a drafted study → (value, why).
      learns: whether it learns the noise around outcomes, if it answers often enough.
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
    few_rounds: int = 0
    settings: Mapping[str, tuple[Any, str]] = MappingProxyType({})
    learns: bool = False


SOLVERS: Mapping[str, Ability] = {
    "site_release": Ability(
        words="a noised sum of gradients and curvatures: suits regressions",
        strength="every visit releases new sums at the current posterior, and their noise averages out "
        "over rounds and clients",
        # Fresh sums average their noise out over rounds; noise on changes adds up.
        rounds=12,
        few_rounds=6,
        learns=True,
    ),
    "dp_optimisation": Ability(
        unheld="intervals leave out the noise of the descent: they are too wide where steps are mostly "
        "noise, and may be far too narrow elsewhere",
        words="DP-SGD at each site",
        strength="it takes gradients of any model, and what the records cannot determine keeps its prior",
        rounds=5,
        settings={"steps": (50, "local steps of an answer")},
    ),
    "perturbed_update": Ability(
        of_clients=True,
        words="the whole change of a site, clipped and noised once",
        strength="each visit releases a single change",
        rounds=5,
    ),
    "local_averaging": Ability(strength="the noise on the mean over parts falls with their number"),
    "virtual_clients": Ability(
        strength="the signal grows with the number of parts, and noise is added once"
    ),
    "vips": Ability(
        of_statistics=True,
        unheld="intervals leave out the noise of the sums, and are too narrow where that noise is large",
        strength="every visit releases sums of gradients and curvatures, and their noise averages out in a "
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
"""Solvers with known abilities, in the order in which a drafted study prefers them."""


_OWN = Ability(
    unheld="intervals are those of the study's own solver, and may leave its noise out: nothing shows "
    "whether they hold it"
)


def ability(kind: str) -> Ability:
    """Returns a solver's abilities; for a study's own, that nothing is known of its intervals."""
    return SOLVERS.get(kind, _OWN)
