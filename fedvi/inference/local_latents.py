"""Site effects: adds the latents that a client infers for itself to a visit, and marginalises them out.

A client of a model with site effects u maximises its local objective over (θ, u) together,

    F(q) = E_q[log p(y | θ, u)] + E_q[log p(u | τ)] + ⟨η_c, E_q[T(θ)]⟩ + H(q),

with q(θ, u) in the study's family over both, and answers with the θ-marginal of the optimum. So it solves
the usual problem with u as further coordinates. With a known τ the cavity of u is N(0, diag τ²); with a
learnt one, log p(u | τ) is a separate term (``scale_term``). No other client has a factor over u. The
answer, and all that the server sees, is over θ.

Where q is the full Gaussian, q(θ, u) = q(θ) N(u; a + Bθ, V) with free a, B, V. At a fixed point the
factor of client m is the gradient of its own term in q's mean parameters while (a, B, V) are at their
optimum; so the sum of factors is the gradient of the pooled evidence bound over q(θ) Π_m q(u_m | θ), at
its optimum in every (a, B, V). A full Gaussian over (θ, u₁ … u_M) has that product form too: at
its optimum the precision is E[−∇² log p], which is zero between the effects of two sites. The fixed
point is therefore the pooled variational optimum over all effects, marginalised to θ. In the diagonal
family it is likewise the pooled mean-field optimum.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam.base import FactoredGaussian
from fedvi.inference import whitened
from fedvi.inference.units import UnitModel, unit_model
from fedvi.models.base import Model
from fedvi.models.capabilities import Regression, SharesEffects
from fedvi.typing import Eta
from fedvi.updates.base import Task
from fedvi.updates.finish import scale_of

__all__ = ["Local", "local_problem", "refuse_site_effects", "takes_newton"]

# The largest |log τ| for the initial scale of u.
_WIDEST = 10.0
# The largest exponent: the square of its exponential is still a float32.
_MOST_EXPONENT = 40.0


@dataclasses.dataclass(frozen=True)
class Local:
    """A client's local problem: over θ alone, or over θ and the effects of its site, in this order.

    Attributes:
      family: that of q over both.
      model: the model over both.
      size: D, the size of θ.
      effects: the model over θ that has site effects; None if there are none, and methods then return
        their arguments unchanged.
    """

    family: Any
    model: Model
    size: int
    effects: SharesEffects | None = None

    @property
    def learns_scales(self) -> bool:
        """Whether τ is part of θ, so that log p(u | τ) is a separate term of the objective."""
        return self.effects is not None and self.effects.learnt

    @property
    def site_model(self) -> Model:
        """The model of a new site; with a learnt τ the effects are in units of τ."""
        return self.model if self.effects is None else self.effects.new_site()

    @property
    def regression(self) -> Regression | None:
        """The likelihood as a regression over (θ, u), whose prior is not used; None if it is not one."""
        if self.effects is None or isinstance(self.model, UnitModel):
            return self.model if isinstance(self.model, Regression) else None
        found: Regression = self.effects.regression()
        return found

    @property
    def predicting(self) -> int:
        """How many coordinates of θ are coefficients: all but the learnt log τ, which come last."""
        return self.size if self.effects is None else self.effects.base.size

    def without_scales(self, gradients: tuple[Any, Any]) -> tuple[Any, Any]:
        """Returns gradients of E_q[log p(y | θ, u)] with zeros at each learnt log τ.

        The exact gradients are zero there, whatever the records: no predictor depends on log τ, and θ's
        root is lower triangular with log τ last, so that its coordinates of a guide move log τ alone.
        Noised gradients hold only noise there, and dropping it is post-processing.
        """
        if not self.learns_scales:
            return gradients
        location, raw = gradients
        place = np.arange(self.family.size)
        kept = (place < self.predicting) | (place >= self.size)
        rows = kept[:, None] if raw.ndim == 2 else kept
        return jnp.where(kept, location, 0.0), jnp.where(np.broadcast_to(rows, raw.shape), raw, 0.0)

    def records(self, records: dict[str, Any]) -> dict[str, Any]:
        """Returns the records in the form of ``model``, each a function of its own row."""
        return records if self.effects is None else self.effects.widened(records)

    def new_site(self, eta: Eta) -> tuple[Model, Eta]:
        """Returns ``site_model``, which reads ``records``, and q(θ) times the prior of its effects."""
        if self.effects is None:
            return self.model, eta
        learnt = self.effects.learnt
        precision = np.ones(self.family.size - self.size) if learnt else self._known()
        return self.site_model, self._shared.padded(eta, precision)

    def widen(self, task: Task) -> Task:
        """Returns the task over (θ, u), with u at its prior, given the τ of the broadcast q.

        So the wide cavity has u's prior where τ is known, and no term in u where τ is learnt.
        """
        if self.effects is None:
            return task
        if not self.effects.learnt:
            start = self._known()
            kept = np.zeros_like(start)
        else:
            mean, _ = self._shared.moments(task.posterior)
            log_scales = np.clip(mean[self.effects.base.size :], -_WIDEST, _WIDEST)
            kept = start = np.exp(-2.0 * np.tile(log_scales, self.effects.sites))
        return task._replace(
            posterior=self._shared.padded(task.posterior, start),
            factor=self._shared.padded(task.factor, kept),
        )

    def says_nothing(self, mask: np.ndarray) -> bool:
        """Whether a client must answer with its cavity because it has no records; for non-private solvers.

        Such a client has no information on τ, and its exact factor is 1. But a Gaussian over (log τ, u)
        cannot represent how u's prior changes with τ, and its fit would wrongly gain precision on τ.

        Args:
          mask: bool [capacity], true where there is a record.
        """
        return self.learns_scales and not mask.any()

    def scale_term(self, parameters: tuple[Any, Any], at: whitened.AnyFrame) -> Any:
        """Returns E_q[log p(u | τ)] up to a constant, for a guide in the coordinates of ``whitened``.

        It holds no data. It is 0 where τ is known: the cavity has the prior of u then.
        """
        location, raw = parameters
        if not self.learns_scales:
            return jnp.zeros_like(location[0])
        assert isinstance(at, whitened.Frame)  # a low-rank family takes no effects
        spread = whitened.spread(raw)
        if raw.ndim == 1:
            return self._expected(at.mean + at.root * location, (at.root * spread) ** 2)[0]
        root = at.root @ spread
        return self._expected(at.mean + at.root @ location, root @ root.T)[0]

    def scale_moments(self, mean: Any, covariance: Any) -> tuple[Any, Any, Any]:
        """Returns E_q[log p(u | τ)], E_q[∇ log p(u | τ)] [W] and −E_q[∇² log p(u | τ)] [W, W].

        Args:
          mean: that of q over both, [W].
          covariance: [W, W], or [W] for the diagonal family.
        """
        scale, own = self._places()
        value, weight, first, square = self._expected(mean, covariance)
        gradient = jnp.zeros_like(mean).at[scale].add(square - 1.0).at[own].add(-first)
        curvature = jnp.zeros((mean.shape[0], mean.shape[0]), mean.dtype)
        curvature = curvature.at[scale, scale].add(2.0 * square).at[own, own].add(weight)
        across = curvature.at[scale, own].add(-2.0 * first)
        return value, gradient, across.at[own, scale].add(-2.0 * first)

    def _expected(self, mean: Any, covariance: Any) -> tuple[Any, Any, Any, Any]:
        """Returns E[log p(u | τ)] up to a constant, and E[τ⁻²], E[u τ⁻²] and E[u² τ⁻²] of each effect.

        With ρ = log τ of mean r and variance w, u of mean m and variance v, and covariance c: E[τ⁻²] = k
        = exp(2w − 2r), E[u τ⁻²] = k (m − 2c) and E[u² τ⁻²] = k ((m − 2c)² + v).
        """
        scale, own = self._places()
        if covariance.ndim == 1:
            variance, together = covariance, jnp.zeros_like(mean[own])
        else:
            variance, together = jnp.diagonal(covariance), covariance[scale, own]
        # Under noise, ρ may reach values whose exponential overflows float32.
        exponent = jnp.minimum(2.0 * (variance[scale] - mean[scale]), _MOST_EXPONENT)
        weight, centre = jnp.exp(exponent), mean[own] - 2.0 * together
        square = weight * (centre**2 + variance[own])
        return -(mean[scale] + 0.5 * square).sum(), weight, weight * centre, square

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of log τ and of u in (θ, u), for every effect."""
        assert self.effects is not None
        scale = np.arange(self.effects.base.size, self.effects.size)
        return np.tile(scale, self.effects.sites), np.arange(self.size, self.family.size)

    def narrow(self, eta: Eta) -> Eta:
        """Returns the θ-marginal of a q whose u is proper; by the Schur complement, in float64."""
        return eta if self.effects is None else self.family.marginal(eta, self.size)

    def narrow_whitened(self, value: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the θ-marginal of a guide in the coordinates of ``whitened``.

        u starts independent of θ, so the root is block diagonal; and z = a + Bε with B lower triangular.
        So the first block is the marginal.
        """
        if self.effects is None:
            return value
        scale = value["scale"]
        scale = scale[: self.size, : self.size] if scale.ndim == 2 else scale[: self.size]
        return {"location": value["location"][: self.size], "scale": scale}

    def told(self, eta: Eta) -> dict[str, Any]:
        """Returns lists ``site_effects`` and ``site_effect_sds`` for a q over both; {} if it is improper.

        For the client's own log. They are functions of its records and never leave the client.
        """
        if self.effects is None or not self.family.is_proper(eta):
            return {}
        return self._told(*self.family.moments(eta))

    def told_whitened(self, wide: Task, value: dict[str, np.ndarray]) -> dict[str, Any]:
        """Returns the same as ``told`` for a guide in the coordinates of ``whitened``, however noisy."""
        if self.effects is None:
            return {}
        location, raw = value["location"], value["scale"]
        if raw.ndim == 1:
            mean, root = self.family.moments(wide.posterior)
            return self._told(mean + root * location, root * np.exp(raw))
        mean, root = self.family.location_root(wide.posterior)
        spread = root @ scale_of(raw)
        return self._told(mean + root @ location, np.sqrt((spread**2).sum(axis=1)))

    def _told(self, mean: np.ndarray, sd: np.ndarray) -> dict[str, Any]:
        own = slice(self.size, None)
        return {"site_effects": mean[own].tolist(), "site_effect_sds": sd[own].tolist()}

    def _known(self) -> np.ndarray:
        assert self.effects is not None
        return np.tile(np.asarray(self.effects.scales, np.float64) ** -2.0, self.effects.sites)

    @property
    def _shared(self) -> Any:
        """The family over θ alone."""
        return dataclasses.replace(self.family, size=self.size)


def local_problem(family: Any, model: Model) -> Local:
    """Returns the problem that a client solves, for a model with or without site effects.

    Args:
      family: full, diagonal or low-rank Gaussian over the model's θ.
      model: any model; with site effects, records may also have several rows (``unit_model``).

    Raises:
      SolverError: site effects with a low-rank family.

    >>> from fedvi import expfam
    >>> from fedvi.models import linear
    >>> from fedvi.models.site_effects import site_effects
    >>> local = local_problem(expfam.full_gaussian(2), site_effects(linear(["a", "b"])))
    >>> local.size, local.family.size
    (2, 3)
    """
    inner = model.model if isinstance(model, UnitModel) else model
    if not isinstance(inner, SharesEffects):
        return Local(family, model, family.size)
    if isinstance(family, FactoredGaussian):
        raise errors.SolverError(
            "family `low_rank_gaussian` does not support site effects: its directions are of θ, and q is "
            "over θ and the effects of a site",
            'write kind = "full_gaussian" or "diagonal_gaussian" under [family], or leave site_effect out',
        )
    joint = inner.joint()
    wide = dataclasses.replace(family, size=joint.size)
    return Local(wide, joint if inner is model else unit_model(joint), family.size, inner)


def takes_newton(model: Model) -> bool:
    """Returns whether the solver ``glm`` takes a model."""
    return isinstance(model, Regression | SharesEffects)


def refuse_site_effects(model: Model, solver: str) -> None:
    """Rejects a model with site effects, for solvers that treat records or parts of a shard separately.

    Raises:
      SolverError: the model has site effects.
    """
    inner = model.model if isinstance(model, UnitModel) else model
    if isinstance(inner, SharesEffects):
        raise errors.SolverError(
            f"solver `{solver}` does not support site effects, which all records of a site share: it "
            "treats records, or parts of a shard, separately, and cannot infer them",
            "use solver kind `dp_optimisation`, or `perturbed_update`; without privacy `exact`, `glm` or "
            "`gradient`; or leave site_effect out",
        )
