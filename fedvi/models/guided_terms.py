"""The ELBO terms of a NumPyro model and its guide: those without records, and one for each record."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.distributions.kl import kl_divergence
from numpyro.primitives import Messenger

from fedvi import errors
from fedvi.models.layout import Layout
from fedvi.models.made_up import ONE
from fedvi.models.plates import (
    Run,
    Watch,
    is_factor,
    is_inside,
    is_mixture,
    is_same,
    is_supported,
    kind_of,
    learnt_as,
    log_density,
    numpyro_rules,
    plate_sizes,
    record_terms,
    records_supported,
    scaled_term,
    total_of,
    transform_of,
)

__all__ = ["Guided", "is_sample"]

# Survival models are often written as a factor of a predictor, a shape and a scale.
_OF_A_FACTOR = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Guided:
    """The ELBO as a sum of terms outside of the record plate and one term per record.

    Made by ``guided``, which checks that the sum is right.

    Attributes:
      model, guide: NumPyro functions.
      static: keyword arguments of both, without records.
      plate: the name of the record plate.
      layout: which arguments hold records.
      particles: Monte Carlo draws to average.
      analytic: whether KL divergences are computed in closed form where there is one.
      has_local: whether records have latents of their own.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    static: Mapping[str, Any]
    plate: str
    layout: Layout
    particles: int
    analytic: bool
    has_local: bool = False

    def public_term(self, params: Mapping[str, Any], key: Any) -> Float[Array, ""]:
        """Returns the estimate of E_q[log p(θ) − log q(θ)] over all sites outside of the plate."""
        columns = self.layout.made_up(ONE)
        return self._mean(lambda one: self._terms(params, one, columns, 0, inside=False), key)

    def record_term(
        self, params: Mapping[str, Any], key: Any, row: list[Any], place: Any
    ) -> Float[Array, ""]:
        """Returns the estimate of one record's term: its likelihood, and its local latents' log p − log q.

        The plate's own factor size ÷ subsample size is removed. Global latents are those that
        ``public_term`` draws with the same key. NaN where an observation is outside of its support: such a
        record counts as zero, where NumPyro's density may be finite and wrong.

        Args:
          params: constrained parameters of model and guide.
          key: the key of this step.
          row: one record's columns, without the record axis.
          place: a random word that does not depend on other records; the key of the local latents.
        """
        columns = [column[None] for column in row]
        return self._mean(lambda one: self._terms(params, one, columns, place, inside=True), key)

    def record_term_at(self, latents: Mapping[str, Any], key: Any, row: list[Any]) -> Any:
        """As ``record_term``, with the global latents' values given, in their own supports."""
        columns = [column[None] for column in row]
        with numpyro_rules():
            run = self._run(handlers.seed(self.model, key), latents, columns, 0)
            total = total_of(record_terms(run, self.plate).values(), jnp.result_type(float))
            return jnp.where(records_supported(run, self.plate), total, jnp.nan)

    def described_at(self, latents: Mapping[str, Any], key: Any, row: list[Any]) -> tuple[Any, int]:
        """Returns the numbers that describe the law of one record's outcomes at given latents.

        Args:
          latents, key, row: as in ``record_term_at``.

        Returns:
          (floats [L], the numbers of all parameters of distributions; how many more stand for outcomes
          whose parameters do not tell: one for a mixture, whose parts share each record, and three for a
          ``factor``, of which nothing is known.)
        """
        columns = [column[None] for column in row]
        numbers, more = [jnp.zeros(0)], 0
        with numpyro_rules():
            run = self._run(handlers.seed(self.model, key), latents, columns, 0)
            for site in run.sites.values():
                if not (is_sample(site) and site["is_observed"] and is_inside(site, self.plate)):
                    continue
                if is_factor(site) or is_mixture(site):
                    more += _OF_A_FACTOR if is_factor(site) else 1
                    continue
                leaves = map(jnp.asarray, jax.tree.leaves(site["fn"]))
                numbers += [
                    jnp.ravel(leaf).astype(float)
                    for leaf in leaves
                    if jnp.issubdtype(leaf.dtype, jnp.floating)
                ]
            return jnp.concatenate(numbers), more

    def unsupported(
        self, params: Mapping[str, Any], key: Any, columns: list[Any]
    ) -> dict[str, str]:
        """Returns the kind of distribution by site, for what ONE record has outside of its support.

        For messages, and so not to be compiled; ``columns`` have a record axis of 1.
        """
        model, _ = self.traces(params, key, columns, 0)
        with numpyro_rules():
            return {
                name: kind_of(site)
                for name, site in model.sites.items()
                if is_sample(site)
                and site["is_observed"]
                and is_inside(site, self.plate)
                and not is_supported(site)
            }

    def prior_at(self, latents: Mapping[str, Any], key: Any) -> Float[Array, ""]:
        """Returns log p of all sites outside of the plate at global latents in their own supports."""
        with numpyro_rules():
            run = self._run(handlers.seed(self.model, key), latents, self.layout.made_up(ONE), 0)
            total = jnp.zeros(())
            for site in run.sites.values():
                if is_sample(site) and not is_inside(site, self.plate):
                    total = total + log_density(site, 1.0)
            return total

    def global_latents(self, params: Mapping[str, Any], key: Any) -> dict[str, Any]:
        """Returns the guide's draw of every global latent of the model, in its own support."""
        model, _ = self.traces(params, key, self.layout.made_up(ONE), 0)
        return {name: site["value"] for name, site in model.sites.items() if self._is_global(site)}

    def global_transforms(self, params: Mapping[str, Any], key: Any) -> dict[str, Any]:
        """Returns each global latent's map from the real numbers to its support.

        Raises:
          ModelError: if a record's term depends on more than θ, or a support depends on a latent.
        """
        columns = self.layout.made_up(ONE)
        keys = jax.random.split(key)
        (model, guide), (other, _) = (self.traces(params, one, columns, 0) for one in keys)
        for name, site in model.sites.items():
            if site["type"] == "param" and learnt_as(site):
                raise errors.ModelError(
                    f"the model has the parameter {name!r}, which aligned gradients do not reach",
                    "give it a prior with numpyro.sample, or use gradients='full'",
                )
        for name, site in {**guide.sites, **model.sites}.items():
            if is_sample(site) and not site["is_observed"] and is_inside(site, self.plate):
                raise errors.ModelError(
                    f"{name!r} is a latent of each record, which aligned gradients do not reach",
                    "use gradients='full'",
                )
        transforms = {}
        for name, site in model.sites.items():
            if self._is_global(site):
                with numpyro_rules():
                    transforms[name] = transform_of(site)
                    real = transforms[name].inv(site["value"])
                    if not is_same(transform_of(other.sites[name])(real), site["value"]):
                        raise errors.ModelError(
                            f"the support of {name!r} depends on another latent, expected a fixed one"
                        )
        return transforms

    def _is_global(self, site: dict[str, Any]) -> bool:
        return is_sample(site) and not site["is_observed"] and not is_inside(site, self.plate)

    def _mean(self, term: Callable[[Any], Any], key: Any) -> Any:
        if self.particles == 1:
            return term(key)
        return jax.vmap(term)(jax.random.split(key, self.particles)).mean()

    def _terms(
        self, params: Mapping[str, Any], key: Any, columns: list[Any], place: Any, inside: bool
    ) -> Any:
        model, guide = self.traces(params, key, columns, place)
        with numpyro_rules():
            total = jnp.zeros(())
            for name in dict.fromkeys([*model.sites, *guide.sites]):
                sites = [run.sites.get(name) for run in (model, guide)]
                ours, theirs = (site if is_sample(site) else None for site in sites)
                known = ours if ours is not None else theirs
                if known is not None and is_inside(known, self.plate) is inside:
                    total = total + self._term(ours, theirs, self._scale(model, guide, inside))
            return (
                jnp.where(records_supported(model, self.plate), total, jnp.nan) if inside else total
            )

    def _scale(self, model: Any, guide: Any, inside: bool) -> float:
        if not inside:
            return 1.0
        size, subsample_size = (model.plates.get(self.plate) or guide.plates[self.plate])[0]
        return float(size / subsample_size)

    def _term(self, ours: Any, theirs: Any, plate_scale: float) -> Any:
        if self.analytic and ours is not None and theirs is not None:
            try:
                divergence = kl_divergence(theirs["fn"], ours["fn"])
            except NotImplementedError:
                pass
            else:
                return -jnp.sum(scaled_term(divergence, theirs, plate_scale))
        terms = jnp.zeros(())
        if ours is not None:
            terms = terms + log_density(ours, plate_scale)
        if theirs is not None:
            terms = terms - log_density(theirs, plate_scale)
        return terms

    def traces(
        self, params: Mapping[str, Any], key: Any, columns: list[Any], place: Any
    ) -> tuple[Run, Run]:
        """Runs guide and model as ``Trace_ELBO`` does with the same key; returns (model, guide)."""
        model_key, guide_key = jax.random.split(key)
        with numpyro_rules():
            guide = self._run(handlers.seed(self.guide, guide_key), params, columns, place)
            replayed = handlers.replay(handlers.seed(self.model, model_key), guide.sites)
            model = self._run(replayed, params, columns, place)
        return model, guide

    def _run(self, function: Any, values: Mapping[str, Any], columns: list[Any], place: Any) -> Run:
        args, kwargs = self.layout.call(columns)
        watch = Watch()
        substituted = handlers.substitute(function, data=dict(values))
        rows = _Rows(self.plate, columns[0].shape[0], place)
        with watch, handlers.trace() as sites, rows:
            substituted(*args, **kwargs, **self.static)
        return Run(sites, watch.plates)


class _Rows(Messenger):  # type: ignore[misc]
    """Gives the record plate all rows in order, and each record its own keys."""

    def __init__(self, plate: str, count: int, place: Any) -> None:
        super().__init__()
        self._plate, self._count, self._place = plate, count, place

    def process_message(self, message: dict[str, Any]) -> None:
        # Runs after `seed`, which has drawn a key as in NumPyro, so that key streams stay the same.
        if message["type"] == "plate":
            size, subsample_size = plate_sizes(message)
            if subsample_size == self._count and size != subsample_size:
                message["value"] = jnp.arange(self._count)
        elif message["type"] == "sample" and is_inside(message, self._plate):
            key = message["kwargs"].get("rng_key")
            if message["value"] is None and key is not None:
                message["kwargs"]["rng_key"] = jax.random.fold_in(key, self._place)


def is_sample(site: Any) -> bool:
    return site is not None and site["type"] == "sample"
