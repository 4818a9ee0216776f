"""Regressions with effects that differ between sites."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi import errors
from fedvi.models.arguments import Scale, checked_scale
from fedvi.models.base import Model, Record
from fedvi.models.glm import GeneralisedLinearModel, normal_log_prior
from fedvi.models.outcomes.hazard import Intervals
from fedvi.typing import INTERCEPT, LOG_SCALE, SITE

__all__ = ["SiteEffects", "WithScales", "site_effects"]

# Bound on |log τ|: no linear predictor has a scale of e¹⁰, and float32 results must stay finite.
_LARGEST = 10.0


@dataclasses.dataclass(frozen=True)
class SiteEffects:
    """A regression whose linear predictor is xᵀβ + zᵀu at a site, with u ~ N(0, diag τ²) for each site.

    The sites share θ: β, followed by log τ if τ is learnt. All records of a site share its u, which
    never leaves the site. Given θ alone these records are not independent, so there is no likelihood of
    one record, and ``log_likelihood`` raises an error: a solver without support for u cannot fit the
    model by mistake. ``joint`` is the model of (θ, u).

    All fields are public, and models with equal fields are equal. Make one with ``site_effects``, which
    checks its arguments.

    Attributes:
      base: the regression without effects.
      labels: names of the K columns of z, for tables.
      places: the indices of these columns in x; −1 for a column of ones.
      scales: τ of each; if learnt, its prior median: log τ ~ N(log scale, 1).
      learnt: whether τ is part of θ.
      sites: how many sites the records come from; one for a client.
    """

    base: GeneralisedLinearModel
    labels: tuple[str, ...]
    places: tuple[int, ...]
    scales: tuple[float, ...]
    learnt: bool = False
    sites: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of β, and "log τ: column" for each learnt scale."""
        return self.base.names + tuple(LOG_SCALE + label for label in self._learnt_labels)

    @property
    def size(self) -> int:
        """D, the size of θ, without the effects."""
        return self.base.size + len(self._learnt_labels)

    @property
    def effect_names(self) -> tuple[str, ...]:
        """The names of the effects u of all sites, site by site."""
        own = tuple(f"site effect: {label}" for label in self.labels)
        if self.sites == 1:
            return own
        return tuple(f"{name}, site {site}" for site in range(self.sites) for name in own)

    @property
    def _learnt_labels(self) -> tuple[str, ...]:
        return self.labels if self.learnt else ()

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns log p₀(θ): that of β, plus Σ log N(log τ; log scale, 1) if τ is learnt."""
        theta = jnp.asarray(theta)
        found = normal_log_prior(theta[: self.base.size], self.base.prior_scales)
        if not self.learnt:
            return found
        medians = jnp.asarray([math.log(scale) for scale in self.scales], theta.dtype)
        return found + normal_log_prior(theta[self.base.size :] - medians, (1.0,) * len(medians))

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Raises: records of a site share an effect, so θ alone gives no likelihood of one record.

        Raises:
          ModelError: always.
        """
        raise errors.ModelError(
            "the records of a site share its effects, so that θ alone gives no record a likelihood",
            "use a solver that infers the effects too: exact, glm, gradient, dp_optimisation or "
            "perturbed_update; for predictions take `joint`",
        )

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns ``{"coefficients": β}``, and ``"site_scale": τ`` if that is learnt."""
        theta = jnp.asarray(theta)
        found = {"coefficients": theta[: self.base.size]}
        return found | ({"site_scale": jnp.exp(theta[self.base.size :])} if self.learnt else {})

    @property
    def outcome(self) -> Any:
        """The outcome of the base."""
        return self.base.outcome

    def new_site(self) -> Model:
        """Returns the model of (θ, u) for a new site; with a learnt τ, u is in units of τ."""
        return WithScales(self, standard=True) if self.learnt else self.regression()

    def joint(self) -> Model:
        """Returns the model of (θ, u) for records from ``widened``; with a known τ, ``regression``."""
        return WithScales(self) if self.learnt else self.regression()

    def regression(self) -> GeneralisedLinearModel:
        """Returns the likelihood of ``joint`` as a regression, with u as further coefficients.

        With a known τ its prior is also that of ``joint``. With a learnt τ it is not: u then has the prior
        N(0, 1) instead of N(0, τ²), and so have the coordinates of log τ, whose columns are zeros.
        """
        scales = (
            (1.0,) * (len(self.scales) * (1 + self.sites))
            if self.learnt
            else (self.scales * self.sites)
        )
        # Intervals of a survival model repeat x in every row, whatever its length.
        return dataclasses.replace(
            self.base,
            names=self.names + self.effect_names,
            prior_scales=self.base.prior_scales + scales,
        )

    def widened(self, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the records of ``joint``: x becomes (x, 0, z), with z in the block of its site.

        There is one 0 for each learnt log τ, which is in no predictor. Each row depends on its own record
        alone.

        Args:
          records: with x [..., C]; with several sites also ``SITE`` [...], from 0.
        """
        x = np.asarray(records["x"])
        ones = np.ones((*x.shape[:-1], 1), x.dtype)
        z = np.concatenate(
            [x[..., place : place + 1] if place >= 0 else ones for place in self.places], axis=-1
        )
        rest = {name: column for name, column in records.items() if name != SITE}
        if self.sites > 1:
            own = np.eye(self.sites, dtype=x.dtype)[np.asarray(records[SITE])]
            z = (own[..., :, None] * z[..., None, :]).reshape(*x.shape[:-1], -1)
        nothing = np.zeros((*x.shape[:-1], len(self._learnt_labels)), x.dtype)
        return {**rest, "x": np.concatenate([x, nothing, z], axis=-1)}


@dataclasses.dataclass(frozen=True)
class WithScales:
    """The model of (β, log τ, u) with u ~ N(0, diag τ²), for records from ``widened``.

    Attributes:
      effects: the model of θ = (β, log τ).
      standard: whether v = u / τ ~ N(0, 1) replaces u, so that its prior does not depend on τ. At sites
        with many records the data determine u, and a Gaussian over (log τ, u) fits well; a new site has
        only the prior of v.
    """

    effects: SiteEffects
    standard: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of θ, then of the effects."""
        return self.effects.names + self.effects.effect_names

    @property
    def size(self) -> int:
        """The number of coordinates of θ and u."""
        return self.effects.size + len(self.effects.effect_names)

    @property
    def outcome(self) -> Any:
        """The outcome of the base."""
        return self.effects.outcome

    def multipliers(self, theta: Any) -> Any:
        """Returns (θ, u), the multipliers of the columns of a widened record."""
        theta = jnp.asarray(theta)
        return jnp.concatenate([theta[: self.effects.size], self.constrain(theta)["effects"]])

    def log_prior(self, theta: Float[ArrayLike, " w"]) -> Float[Array, ""]:
        """Returns log p₀(θ) + Σ log N(u; 0, τ²), or + Σ log N(v; 0, 1)."""
        theta, shared = jnp.asarray(theta), self.effects.size
        own, ones = theta[shared:], (1.0,) * len(self.effects.effect_names)
        found = self.effects.log_prior(theta[:shared])
        if self.standard:
            return found + normal_log_prior(own, ones)
        log_scales = self._log_scales(theta)
        return found + normal_log_prior(own * jnp.exp(-log_scales), ones) - log_scales.sum()

    def log_likelihood(self, theta: Float[ArrayLike, " w"], record: Record) -> Float[Array, ""]:
        """Returns log p(y | a = xᵀβ + zᵀu) of ONE record, over all its rows."""
        theta, shared = jnp.asarray(theta), self.effects.size
        if self.standard:
            own = theta[shared:] * jnp.exp(self._log_scales(theta))
            theta = jnp.concatenate([theta[:shared], own])
        return self.effects.regression().log_likelihood(theta, record)

    def constrain(self, theta: Float[ArrayLike, " w"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns the result of ``SiteEffects.constrain``, with ``"effects"``: u."""
        theta, shared = jnp.asarray(theta), self.effects.size
        own = theta[shared:]
        if self.standard:
            own = own * jnp.exp(self._log_scales(theta))
        return self.effects.constrain(theta[:shared]) | {"effects": own}

    def _log_scales(self, theta: Any) -> Any:
        """Returns log τ of every effect, site by site."""
        of_columns = theta[self.effects.base.size : self.effects.size]
        return jnp.tile(jnp.clip(of_columns, -_LARGEST, _LARGEST), self.effects.sites)


def site_effects(
    base: Model,
    columns: Sequence[str] = (INTERCEPT,),
    scale: Scale | Sequence[Scale] = 1.0,
    learnt: bool = False,
) -> SiteEffects:
    """Lets coefficients of a regression differ by site: a = xᵀβ + zᵀu, u ~ N(0, diag τ²) at each site.

    β then belongs to a typical site, with u = 0. Its coefficients hold within a site
    ("conditional"); in a logistic model they are further from 0 than those of all sites pooled.
    In a survival model u is a log-normal frailty that a site's records share.

    Args:
      base: ``linear``, ``logistic``, ``binomial``, ``poisson``, ``negative_binomial`` or ``survival``.
      columns: the coefficients of the base that differ; "(Intercept)" is added to all predictors of a
        site, whether or not the base has an intercept.
      scale: τ, the effects' standard deviation: one for all columns, or one for each. Known and public;
        if learnt, the median of its prior, under which 95 % is within a factor of 7.1.
      learnt: whether τ is inferred, as log τ ~ N(log scale, 1). It takes many sites: with M sites,
        log τ is known to about 1 / √(2M).

    Raises:
      ModelError: another base, a column that it does not have, a repeated one, or a scale that is not
        a positive number.

    Source: docs/proofs/updates.md §4; Laird and Ware (1982), Random-effects models for
    longitudinal data, for the model.

    >>> from fedvi.models import logistic
    >>> model = site_effects(logistic(["(Intercept)", "age"]), scale=0.5)
    >>> model.size, model.joint().names
    (2, ('(Intercept)', 'age', 'site effect: (Intercept)'))
    """
    if not isinstance(base, GeneralisedLinearModel) or not isinstance(
        base.layout, Intervals | None
    ):
        raise errors.ModelError(
            f"site effects on a {type(base).__name__} that has no single linear predictor a record",
            "they go with linear, logistic, binomial, poisson, negative_binomial and survival",
        )
    names = base.names
    if isinstance(base.layout, Intervals):
        names = names[len(base.layout.names) :]
    labels = (columns,) if isinstance(columns, str) else tuple(columns)
    for label in labels:
        if label != INTERCEPT and label not in names:
            raise errors.ModelError(
                f"site effects on {label!r}, which is no coefficient of the model",
                errors.did_you_mean(str(label), [INTERCEPT, *names]),
            )
    if not labels or len(set(labels)) < len(labels):
        raise errors.ModelError(
            f"site effects on {list(labels)!r}, expected one or more different columns",
            f'a site effect on the level alone is ["{INTERCEPT}"]',
        )
    given = list(np.asarray(scale).ravel())
    if np.ndim(scale) and len(given) != len(labels):
        raise errors.ModelError(
            f"the scale of the site effects has {len(given)} numbers, expected {len(labels)}",
            "give one number for all columns, or a list in their order",
        )
    hint = "it is the standard deviation of effects between sites; 1 is large in a logistic model"
    scales = tuple(checked_scale("the scale of the site effects", item, hint) for item in given)
    return SiteEffects(
        base,
        labels,
        tuple(-1 if label == INTERCEPT else names.index(label) for label in labels),
        scales if len(scales) == len(labels) else scales * len(labels),
        learnt,
    )
