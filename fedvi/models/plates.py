"""Runs a NumPyro model once, and splits its sites and log densities by the record plate."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro import handlers
from numpyro.distributions import (
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    MixtureGeneral,
    MixtureSameFamily,
    Unit,
    biject_to,
    constraints,
)
from numpyro.distributions.distribution import validation_enabled
from numpyro.primitives import Messenger

from fedvi import errors

__all__ = [
    "SEED",
    "Run",
    "Watch",
    "density_of",
    "global_terms",
    "is_bijectable",
    "is_factor",
    "is_inside",
    "is_mixture",
    "is_same",
    "is_supported",
    "kind_of",
    "learnt_as",
    "log_density",
    "numpyro_rules",
    "plate_sizes",
    "record_terms",
    "records_supported",
    "run_with",
    "scaled_term",
    "total_of",
    "transform_of",
]

# NumPyro runs without sampling; this public seed is for models that draw unused numbers.
SEED = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """One execution: the sites by name, and every plate as (size, subsample size)."""

    sites: Mapping[str, dict[str, Any]]
    plates: Mapping[str, list[tuple[int, int]]]


class Watch(Messenger):  # type: ignore[misc]
    """Records each plate as it is made (a trace keeps only the last of a name), and rejects scans."""

    def __init__(self) -> None:
        super().__init__()
        self.plates: dict[str, list[tuple[int, int]]] = {}

    def process_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "control_flow":
            raise errors.ModelError(
                "numpyro.contrib.control_flow is used, expected sample sites outside of it",
                "use a Python loop over sample sites, or jax.lax.scan without sample sites",
            )

    def postprocess_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "plate":
            self.plates.setdefault(message["name"], []).append(plate_sizes(message))


def run_with(
    function: Callable[..., Any],
    records: Mapping[str, Any],
    value_fn: Callable[[dict[str, Any]], Any],
    plate: str,
    constants: Mapping[str, Any],
) -> Run:
    """Runs the model with ``value_fn(site)`` for its latents; None leaves a site alone.

    ``constants`` are values of param sites; a network with such a value is not initialised again.
    """
    count = next(iter(records.values())).shape[0]

    def substitute(site: dict[str, Any]) -> Any:
        if site["type"] == "plate":
            # A subsampling record plate gets all rows in order, not random ones.
            if site["name"] == plate and site["args"][1] == count:
                return jnp.arange(count)
            return None
        if site["type"] == "param":
            return constants.get(site["name"])
        return value_fn(site) if site["type"] == "sample" and not site["is_observed"] else None

    watch = Watch()
    seeded = handlers.seed(handlers.substitute(function, substitute_fn=substitute), rng_seed=SEED)
    with watch, handlers.trace() as sites:
        seeded(**records)
    return Run(sites, watch.plates)


def global_terms(run: Run, plate: str, unconstrained: Mapping[str, Array]) -> dict[str, Any]:
    """The log density of each site outside the record plate, latents with their Jacobian."""
    terms = {}
    for name, site in run.sites.items():
        if site["type"] != "sample" or is_inside(site, plate):
            continue
        terms[name] = log_density(site, 1.0)
        if name in unconstrained:
            value = unconstrained[name]
            jacobian = transform_of(site).log_abs_det_jacobian(value, site["value"])
            terms[name] = terms[name] + jnp.sum(jacobian)
    return terms


def record_terms(run: Run, plate: str) -> dict[str, Any]:
    """The log density of each site inside the record plate."""
    size, subsample_size = run.plates[plate][0]
    return {
        name: log_density(site, size / subsample_size)
        for name, site in run.sites.items()
        if site["type"] == "sample" and is_inside(site, plate)
    }


def records_supported(run: Run, plate: str) -> Array:
    """Returns whether all that is observed inside the record plate lies in its support; bool []."""
    found = jnp.ones((), bool)
    for site in run.sites.values():
        if site["type"] == "sample" and site["is_observed"] and is_inside(site, plate):
            found &= is_supported(site)
    return found


def is_supported(site: dict[str, Any]) -> Any:
    """Returns whether a site's value lies in its support where it is not masked; bool [].

    Entries that are judged together, as shares that add up to 1, are taken as they are: their sum may be
    off by rounding. So are angles, whose densities are periodic.
    """
    distribution, support, value = site["fn"], site["fn"].support, site["value"]
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support.event_dim or support is constraints.circular:
        return True
    found = jnp.asarray(support(value))
    while isinstance(distribution, MaskedDistribution | ExpandedDistribution | Independent):
        if isinstance(distribution, MaskedDistribution):
            masked = ~jnp.asarray(distribution._mask)
            found |= jnp.expand_dims(masked, tuple(range(-distribution.event_dim, 0)))
        distribution = distribution.base_dist
    return found.all()


def log_density(site: dict[str, Any], plate_scale: float) -> Any:
    return jnp.sum(scaled_term(density_of(site), site, plate_scale))


def density_of(site: dict[str, Any]) -> Any:
    if site["intermediates"]:
        return site["fn"].log_prob(site["value"], site["intermediates"])
    return site["fn"].log_prob(site["value"])


def scaled_term(density: Any, site: dict[str, Any], plate_scale: float) -> Any:
    return density if site["scale"] is None else density * (site["scale"] / plate_scale)


def total_of(terms: Any, dtype: Any) -> Array:
    total = jnp.zeros((), dtype)
    for term in terms:
        total = total + jnp.asarray(term).astype(dtype)
    return total


@contextlib.contextmanager
def numpyro_rules() -> Iterator[None]:
    """Allows dtype and rank promotion, which NumPyro needs, and disables its argument checks.

    Those checks see numbers only outside of jit, and would reject placeholders there.
    """
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        validation_enabled(False),
    ):
        yield


def transform_of(site: dict[str, Any]) -> Any:
    return biject_to(site["fn"].support)


def plate_sizes(message: dict[str, Any]) -> tuple[int, int]:
    size, subsample_size = message["args"]
    return size, size if subsample_size is None else subsample_size


def is_inside(site: dict[str, Any], plate: str) -> bool:
    return any(frame.name == plate for frame in site["cond_indep_stack"])


def is_factor(site: Mapping[str, Any]) -> bool:
    return _is_one_of(site, Unit)


def is_mixture(site: Mapping[str, Any]) -> bool:
    return _is_one_of(site, (MixtureSameFamily, MixtureGeneral))


def _is_one_of(site: Mapping[str, Any], kinds: Any) -> bool:
    """Returns whether a site's distribution is of these classes, or is made from one that is."""
    distribution = site["fn"]
    while not isinstance(distribution, kinds) and hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return isinstance(distribution, kinds)


def is_bijectable(site: dict[str, Any]) -> bool:
    try:
        transform_of(site)
    except NotImplementedError:
        return False
    return True


def learnt_as(site: dict[str, Any]) -> str:
    """Names the leaves of a param site that are learnt values, with "has" or "have"; empty if none.

    Where ``random_flax_module`` draws from a prior it leaves a shape, which is a tree without leaves.
    """
    leaves = jax.tree_util.tree_leaves_with_path(site["value"])
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    if not paths:
        return ""
    first = f"its `{paths[0]}`" if paths[0] else "it"
    return f"{first} has" if len(paths) == 1 else f"{first} and {len(paths) - 1} more have"


def is_same(a: Any, b: Any) -> bool:
    """Returns whether values agree up to the order of float32 additions."""
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))


def kind_of(site: dict[str, Any]) -> str:
    distribution = site["fn"]
    while hasattr(distribution, "base_dist") and type(distribution).__name__ in (
        "ExpandedDistribution",
        "Independent",
        "MaskedDistribution",
    ):
        distribution = distribution.base_dist
    return type(distribution).__name__
