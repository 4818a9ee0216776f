"""Regressions with effects that differ between sites."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped

from fedvi import errors
from fedvi.models.arguments import INTERCEPT, Scale, checked_scale
from fedvi.models.base import Model, Record
from fedvi.models.glm import GeneralisedLinearModel, normal_log_prior
from fedvi.models.outcomes.hazard import Intervals
from fedvi.typing import LOG_SCALE, SITE

__all__ = ["SiteEffects", "WithScales", "site_effects"]

# No scale of a linear predictor is as large as e¹⁰, and in float32 what is computed of it must stay finite.
_LARGEST = 10.0


@dataclasses.dataclass(frozen=True)
class SiteEffects:
    """A regression whose linear predictor is xᵀβ + zᵀu at a site, with u ~ N(0, diag τ²) for each site.

    θ is what the sites share: β, and after it log τ where τ is learnt. A site's u is its own: all
    records of the site share it, and nobody else ever sees it. Given θ alone these records are
    not independent, so that there is no likelihood of one record, and ``log_likelihood`` refuses: a
    solver that knows nothing of u cannot fit the model by mistake. ``joint`` is the model of (θ, u).

    All fields are public, and equal models are equal. Make one with ``site_effects``, which checks
    its arguments.

    Attributes:
      base: the regression without effects.
      labels: of the K columns of z, for tables.
      places: of these columns in x; −1 for a column of ones.
      scales: τ of each; where it is learnt, its prior median: log τ ~ N(log scale, 1).
      learnt: whether τ is part of θ.
      sites: how many sites the records are of. A client's own are of one.
    """

    base: GeneralisedLinearModel
    labels: tuple[str, ...]
    places: tuple[int, ...]
    scales: tuple[float, ...]
    learnt: bool = False
    sites: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Of β, and "log τ: column" for each learnt scale."""
        return self.base.names + tuple(LOG_SCALE + label for label in self._learnt_labels)

    @property
    def size(self) -> int:
        """D, of θ: without the effects."""
        return self.base.size + len(self._learnt_labels)

    @property
    def effect_names(self) -> tuple[str, ...]:
        """Of the effects u of all sites, site by site."""
        own = tuple(f"site effect: {label}" for label in self.labels)
        if self.sites == 1:
            return own
        return tuple(f"{name}, site {site}" for site in range(self.sites) for name in own)

    @property
    def _learnt_labels(self) -> tuple[str, ...]:
        return self.labels if self.learnt else ()

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns log p₀(θ): that of β, and Σ log N(log τ; log scale, 1) where τ is learnt."""
        theta = jnp.asarray(theta)
        found = normal_log_prior(theta[: self.base.size], self.base.prior_scales)
        if not self.learnt:
            return found
        medians = jnp.asarray([math.log(scale) for scale in self.scales], theta.dtype)
        return found + normal_log_prior(theta[self.base.size :] - medians, (1.0,) * len(medians))

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Refuses: records of a site share an effect, so that θ alone gives none a likelihood.

        Raises:
          ModelError: always.
        """
        raise errors.ModelError(
            "the records of a site share its effects, so that θ alone gives no record a likelihood",
            "use a solver that infers the effects too: exact, glm, gradient, dp_optimisation or "
            "perturbed_update; for predictions take `joint`",
        )

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns ``{"coefficients": β}``, and ``"site_scale": τ`` where that is learnt."""
        theta = jnp.asarray(theta)
        found = {"coefficients": theta[: self.base.size]}
        return found | ({"site_scale": jnp.exp(theta[self.base.size :])} if self.learnt else {})

    @property
    def outcome(self) -> Any:
        """That of the base."""
        return self.base.outcome

    def new_site(self) -> Model:
        """Returns the model of (θ, u) of a site that nobody has seen: with a learnt τ, u in units of τ."""
        return WithScales(self, standard=True) if self.learnt else self.regression()

    def joint(self) -> Model:
        """Returns the model of (θ, u), whose records are those of ``widened``.

        With a known τ it is ``regression``.
        """
        return WithScales(self) if self.learnt else self.regression()

    def regression(self) -> GeneralisedLinearModel:
        """Returns the likelihood of ``joint`` as a regression, with u as further coefficients.

        With a known τ its prior is that of ``joint`` too. With a learnt one it is not: u then has N(0, 1)
        in the place of N(0, τ²), and so have the coordinates of log τ, whose columns are zeros.
        """
        scales = (
            (1.0,) * (len(self.scales) * (1 + self.sites))
            if self.learnt
            else (self.scales * self.sites)
        )
        # Intervals of a survival repeat x in every row, whatever its length.
        return dataclasses.replace(
            self.base,
            names=self.names + self.effect_names,
            prior_scales=self.base.prior_scales + scales,
        )

    def widened(self, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the records of ``joint``: x becomes (x, 0, z), with z in the place of its site.

        0 stands for each log τ that is learnt, which adds to no predictor. Row by row: what a record
        becomes depends on no other.

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
    """The model of (β, log τ, u) with u ~ N(0, diag τ²); records as of ``widened``.

    Attributes:
      effects: the model of θ = (β, log τ).
      standard: whether v = u / τ ~ N(0, 1) stands in the place of u, so that no prior of it depends on τ.
        Sites of many records tell u, and a Gaussian over (log τ, u) fits; a new site knows only v.
    """

    effects: SiteEffects
    standard: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of θ, then of the effects."""
        return self.effects.names + self.effects.effect_names

    @property
    def size(self) -> int:
        """The number of coordinates of θ and of u."""
        return self.effects.size + len(self.effects.effect_names)

    @property
    def outcome(self) -> Any:
        """That of the base."""
        return self.effects.outcome

    def multipliers(self, theta: Any) -> Any:
        """Returns θ and u, by which the columns of a widened record are multiplied."""
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
        """Returns what ``SiteEffects.constrain`` does, and ``"effects"``: u."""
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

    β is then of a site with u = 0, the middle one: its coefficients hold at a given site
    ("conditional"), and in a logistic model they are further from 0 than those of all sites mixed.
    In a survival model u is a shared frailty, log-normal, of the site.

    Args:
      base: ``linear``, ``logistic``, ``binomial``, ``poisson``, ``negative_binomial`` or ``survival``.
      columns: those coefficients of the base that differ; "(Intercept)" is what is added to all
        predictors of a site, whether or not the base has an intercept.
      scale: τ, the effects' standard deviation: one for all columns, or one for each. Known and public;
        where it is learnt, the median of its prior, under which 95 % are within a factor of 7.1.
      learnt: whether τ is inferred, as log τ ~ N(log scale, 1). It takes many sites to tell: from M of
        them, log τ is known to about 1 / √(2M).

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
