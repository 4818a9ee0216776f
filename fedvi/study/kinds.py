"""Which kinds are fedvi's own, by the choice that a study makes; needs no JAX."""

from collections.abc import Mapping
from types import MappingProxyType

from fedvi import expfam, models, plugins
from fedvi.federation import schedules
from fedvi.updates.abilities import SOLVERS

__all__ = ["BUILT_IN", "FORMER", "FUNCTIONS", "KEYS", "check"]

FUNCTIONS = models.FUNCTIONS
"""Kinds of model that are NumPyro functions."""

FORMER: Mapping[str, str] = MappingProxyType(models.FORMER)
"""How studies of 0.1.0 named these functions → their names."""

BUILT_IN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model": (*models.NAMED, *models.FUNCTIONS),
        "family": tuple(expfam.__all__),
        "solver": tuple(SOLVERS),
        "schedule": (*schedules.__all__, "scripted"),
        # Their packages import JAX, so they are listed here as well: tests/unit/study/test_kinds.py.
        "sampler": ("feistel", "full", "poisson"),
        "mechanism": ("discrete_gaussian", "gaussian", "rounded_gaussian"),
    }
)
"""Choice → the names of fedvi's own kinds, which no plug-in and no object takes the place of."""

KEYS: Mapping[str, str] = MappingProxyType(
    {name: f"{name}.kind" for name in ("model", "family", "solver", "schedule")}
    | {"sampler": "solver.sampler", "mechanism": "privacy.mechanism"}
)
"""Choice → the key of a study that makes it."""


def check(kinds: Mapping[str, str], parts: plugins.OutsideCode) -> None:
    """Refuses a study's kinds that name code by its address, or a plug-in that is not allowed.

    Imports nothing. A name that nobody knows is left to whoever looks it up.

    Raises:
      CodeRefused, PolicyRefused: names the key, the kind, and how to allow it.
    """
    for what, kind in kinds.items():
        if plugins.is_address(kind):
            plugins.refuse_address(KEYS[what], kind)
        if kind not in BUILT_IN[what]:
            parts.check(what, KEYS[what], kind)
