"""Regressions as conjugate models, by augmentations that make their likelihood Gaussian."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.gaussian import FullGaussian, GaussianEta
from fedvi.models.arguments import check_coefficients, check_positive, check_ridge
from fedvi.typing import Eta
from fedvi.updates.conjugate import Block, positive_part

__all__ = ["KnownNoise", "PolyaGamma"]

# The share of the squared clip norm for the D×D statistic, which gets most of the noise in any case.
# Centred gradients need less, and noise in the curvature shortens steps; tuned on parts of training sets.
_CURVATURE_SHARE = 0.2
_CENTRED_CURVATURE_SHARE = 0.4
# Bounds on learnt prior precisions, in units of the declared prior: noise in the mean feeds back into
# them, and without a floor they fall to 0 (docs/proofs/updates.md §7).
_SMALLEST, _LARGEST = 1e-2, 1e4
_ITERATIONS = 50


@dataclasses.dataclass(frozen=True)
class _Coefficients:
    """Base of both regressions: q(θ) is a full Gaussian, and a record adds (a·x, b·x xᵀ) to (h, J).

    If centred, the first statistic is the record's gradient at the broadcast mean m, (a − b·xᵀm)·x, which
    is equivalent: a factor is (G, H), a gradient and a curvature, and h = G + H m.
    Then noise in H multiplies θ − m instead of θ, and residuals are mostly smaller than outcomes.

    Attributes:
      coefficients: the names of θ's coordinates.
      prior_scales: prior standard deviation of each.
      row_norm: ‖x‖ of a typical record, a public number.
      learn_prior: "no"; "shared": one precision for all coefficients is learnt, in units of the declared
        ones; or "each": one for each, so that coefficients without effect shrink to 0.
      ridge: what noise in J adds to it, in units of the largest eigenvalue of the noise alone.
      centred: whether gradients are released.
    """

    coefficients: tuple[str, ...]
    prior_scales: tuple[float, ...]
    row_norm: float
    learn_prior: str = "no"
    ridge: float = 0.5
    centred: bool = False

    def __post_init__(self) -> None:
        check_coefficients(self)
        check_positive(self, "row_norm")
        if self.learn_prior not in ("no", "shared", "each"):
            raise errors.ModelError(
                f'learn_prior is {self.learn_prior!r}, expected "no", "shared" or "each"'
            )
        check_ridge(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The coefficients."""
        return self.coefficients

    @property
    def family(self) -> FullGaussian:
        """Full Gaussian."""
        return FullGaussian(len(self.coefficients))

    @property
    def prior(self) -> GaussianEta:
        """Independent N(0, scale²)."""
        return self._prior(np.ones(len(self.coefficients)))

    @property
    def start(self) -> GaussianEta:
        """The prior."""
        return self.prior

    @property
    def norm_error(self) -> float:
        """The error of float64 arithmetic, with x and its multipliers taken as exact.

        Proof: u = 2⁻⁵³. The computed ‖x‖², D squares added in any order, has a relative error of at most
        γ_D (no term is negative; Higham, Accuracy and Stability, 2nd ed., §3.1), γ_n = n·u/(1 − n·u).
        Each square norm has at most two factors of it and ten more roundings, those of the blocks'
        weights and of their sum among them; a root halves a relative error. So it is at most
        γ_{D + 6}, about half of the returned value, for D below 10¹⁴.
        """
        return (len(self.coefficients) + 8) * 2.0**-52

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """x [D] and y."""
        return {"x": (len(self.coefficients),), "y": ()}

    def sound(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns whether all numbers are finite, and the outcome is valid for the likelihood."""
        x, y = (np.asarray(records[name], np.float64) for name in ("x", "y"))
        finite = np.isfinite(x).all(axis=1) & np.isfinite(y.reshape(len(y), -1)).all(axis=1)
        return np.asarray(finite & self._knows(y))

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns rows of the typical norm, on average, and all kinds of outcomes."""
        size = len(self.coefficients)
        x = random.normal(size=(count, size)) * self.row_norm / math.sqrt(size)
        return {"x": x, "y": self._outcomes(count, random)}

    def _knows(self, y: np.ndarray) -> np.ndarray:
        return np.ones(y.shape, bool)

    def _outcomes(self, count: int, random: np.random.Generator) -> np.ndarray:
        return random.normal(size=count)

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a²‖x‖² and b²‖x‖⁴, [B] each."""
        square = (records["x"] ** 2).sum(axis=1)
        return {"h": local["slope"] ** 2 * square, "J": (local["bend"] * square) ** 2}

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns Σ w·a·x [D] and Σ w·b·x xᵀ [D, D]."""
        x = records["x"]
        return {
            "h": x.T @ (weights * local["slope"]),
            "J": (x * (weights * local["bend"])[:, None]).T @ x,
        }

    def factor(self, sums: Mapping[str, np.ndarray], posterior: Eta) -> GaussianEta:
        """Returns the sums as (h, J), or as (G, H) at the mean of ``posterior``."""
        return GaussianEta(sums["h"], sums["J"])

    def posterior(self, total: GaussianEta, noise: Mapping[str, float]) -> GaussianEta:
        """Returns prior + total, with J projected and, if so chosen, the prior's precisions learnt.

        q(α) of a precision α·scale⁻², α ~ Gamma(½, ½), given q(θ), and q(θ) given E[α] are updated in
        turns; E[α] is kept within public bounds.

        Source: docs/proofs/updates.md §8; Tipping (2001) for a precision of each coefficient.
        """
        return self._given(total.h, positive_part(total.J, noise.get("J", 0.0), self.ridge))

    def about(
        self, factors: Sequence[Eta], centres: Sequence[np.ndarray], noise: Mapping[str, float]
    ) -> GaussianEta:
        """Returns q from running means of gradients and curvatures, and of the points m they were taken at.

        With c the mean of the centres, G = Σ G_k + H_k (c_k − c) is the gradient of all records at c, and
        H⁺ is H = Σ H_k, projected and with the ridge. Then h = G + H⁺ c and J = H⁺: the mean of q is
        c + (J_0 + H⁺)⁻¹ (G − J_0 c), so that

        - at the fixed point c, the posterior's gradient G − J_0 c is zero, whatever H⁺ is: a
          ridge shortens steps, and pulls towards c, not towards 0;
        - noise E in H enters as (E⁺ − E)(θ − c), where E⁺ is E after projection and ridge. That vanishes
          with the steps, while the noise of a sum (h, J) enters as E θ;
        - where running means have equal weights, Σ_k ρ_k G_k at m_k is the gradient at Σ_k ρ_k m_k up to
          second order in m_k − c, and exactly so for a quadratic.

        A mean of gradients needs the mean of the centres, not the last centre: the latter would apply
        each old gradient again and again, and oscillate.
        """
        centre = np.mean(centres, axis=0)
        pairs = zip(factors, centres, strict=True)
        gradient = sum(one.h + one.J @ (place - centre) for one, place in pairs)
        total = sum(one.J for one in factors)
        curvature = positive_part(total, noise.get("J", 0.0), self.ridge)
        return self._given(gradient + curvature @ centre, curvature)

    def _given(self, linear: np.ndarray, curvature: np.ndarray) -> GaussianEta:
        size = len(self.coefficients)
        found, squares = np.ones(size), np.asarray(self.prior_scales) ** -2.0
        rounds = 0 if self.learn_prior == "no" else _ITERATIONS
        for _ in range(rounds):
            covariance = np.linalg.inv(curvature + np.diag(found * squares))
            spread = ((covariance @ linear) ** 2 + np.diagonal(covariance)) * squares
            if self.learn_prior == "shared":
                fresh = np.full(size, (1.0 + size) / (1.0 + spread.sum()))
            else:
                fresh = 2.0 / (1.0 + spread)
            found = np.clip(fresh, _SMALLEST, _LARGEST)
        prior = self._prior(found)
        return GaussianEta(prior.h + linear, prior.J + curvature)

    def _prior(self, precisions: np.ndarray) -> GaussianEta:
        size = len(self.coefficients)
        return GaussianEta(
            np.zeros(size), np.diag(precisions * np.asarray(self.prior_scales) ** -2.0)
        )

    def _blocks(self, slope: float, bend: float) -> tuple[Block, ...]:
        size, norm = len(self.coefficients), self.row_norm
        share = _CENTRED_CURVATURE_SHARE if self.centred else _CURVATURE_SHARE
        return (
            Block("h", (size,), slope * norm, 1.0 - share),
            Block("J", (size, size), bend * norm**2, share, symmetric=True, positive=True),
        )


@dataclasses.dataclass(frozen=True)
class PolyaGamma(_Coefficients):
    """Logistic, binomial and negative binomial regression, Gaussian given Pólya-Gamma latents.

    y successes of b trials with log odds a = xᵀθ + o: E[ω] = b·tanh(c/2)/(2c), c² = E_q[a²], and a record
    adds (κ − E[ω]·o)·x to h and E[ω]·x xᵀ to J, with κ = y − b/2. Negative binomial counts have b = y + r,
    κ = (y − r)/2 and log odds a. If trials vary, y is (successes s, failures f), b = s + f and
    κ = (s − f)/2: a record equals s + f yes-or-no records, and without trials it adds nothing.
    Outcomes are whole numbers of any dtype; ``sound`` is false for other values.

    q's standard deviations are too small by √(c / sinh c): the Pólya-Gamma factorisation is Jaakkola
    and Jordan's bound, whose curvature tanh(c/2)/(2c) is above that of the likelihood, σ(c)σ(−c).

    Attributes:
      trials: b; for counts, r. For paired outcomes, b of a typical record, a public number that sets the
        weights of blocks; no statistic depends on it.
      counts: whether outcomes are negative binomial counts.
      offset: o, the same for all records.
      paired: whether outcomes are (successes, failures), [2] each.

    >>> model = PolyaGamma(("a", "b"), (1.0, 1.0), row_norm=1.0)
    >>> [(block.name, block.typical) for block in model.blocks]
    [('h', 0.5), ('J', 0.25)]

    Source: Polson, Scott and Windle (2013), arXiv:1205.0310; docs/proofs/updates.md §8.
    """

    trials: float = 1.0
    counts: bool = False
    offset: float = 0.0
    paired: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "trials")
        if self.counts and self.paired:
            raise errors.ModelError(
                "counts and paired are both true, expected one of them at most",
                "`counts` is for negative binomial outcomes, `paired` for (successes, failures)",
            )

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """x [D] and y, or y [2] for paired outcomes."""
        return {"x": (len(self.coefficients),), "y": (2,) if self.paired else ()}

    @property
    def blocks(self) -> tuple[Block, ...]:
        """κ·x [D] and E[ω]·x xᵀ [D, D]; typical counts are assumed to be near r."""
        return self._blocks(0.5 * self.trials, 0.25 * self.trials * (2.0 if self.counts else 1.0))

    def _knows(self, y: np.ndarray) -> np.ndarray:
        # Checked because Pólya-Gamma latents accept fractions too.
        known = (y >= 0.0) & (y == np.floor(y))
        if self.paired:
            return np.asarray(known.all(axis=1))
        return known if self.counts else known & (y <= self.trials)

    def _outcomes(self, count: int, random: np.random.Generator) -> np.ndarray:
        if self.paired:
            # The typical number of trials on average, and none at times.
            most = math.ceil(self.trials)
            return random.integers(0, most + 1, size=(count, 2)).astype(np.float64)
        most = int(4.0 * self.trials if self.counts else self.trials)
        return random.integers(0, most + 1, size=count).astype(np.float64)

    def messages(self, posterior: GaussianEta) -> dict[str, np.ndarray]:
        """Returns the mean [D] and a root of the covariance [D, D]."""
        mean, root = self.family.location_root(posterior)
        return {"mean": mean.astype(np.float32), "root": root.astype(np.float32)}

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the multipliers of x and of x xᵀ, [B] each."""
        import jax
        import jax.numpy as jnp

        x, y = records["x"], records["y"]
        highest = jax.lax.Precision.HIGHEST  # on a GPU the default would round to TF32
        centre = jnp.matmul(x, messages["mean"], precision=highest) + self.offset
        spread = jnp.matmul(x, messages["root"], precision=highest)
        tilt = jnp.sqrt(centre**2 + (spread**2).sum(axis=1))
        near = tilt < 1e-2
        safe = jnp.where(near, jnp.ones_like(tilt), tilt)
        # The series of tanh(c/2)/(2c) at 0, whose next term is c⁴/480.
        bend = jnp.where(near, 0.25 - tilt**2 / 48.0, jnp.tanh(0.5 * safe) / (2.0 * safe))
        if self.counts:
            bend, slope = bend * (y + self.trials), 0.5 * (y - self.trials)
        elif self.paired:
            bend, slope = bend * (y[:, 0] + y[:, 1]), 0.5 * (y[:, 0] - y[:, 1])
        else:
            bend, slope = bend * self.trials, y - 0.5 * self.trials
        return {"slope": slope - bend * (centre if self.centred else self.offset), "bend": bend}


@dataclasses.dataclass(frozen=True)
class KnownNoise(_Coefficients):
    """Linear regression with known noise: y ~ N(xᵀθ, s²), without latents, so that one round is exact.

    Attributes:
      noise_scale: s.
      outcome_norm: |y|/s of a typical record, a public number.
    """

    noise_scale: float = 1.0
    outcome_norm: float = 1.0

    @property
    def blocks(self) -> tuple[Block, ...]:
        """y·x/s² [D] and x xᵀ/s² [D, D]."""
        return self._blocks(self.outcome_norm / self.noise_scale, self.noise_scale**-2.0)

    def messages(self, posterior: GaussianEta) -> dict[str, np.ndarray]:
        """Returns the mean [D] if centred; else {}, since no statistic depends on q."""
        if not self.centred:
            return {}
        return {"mean": self.family.moments(posterior)[0].astype(np.float32)}

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the multipliers of x and of x xᵀ, [B] each."""
        import jax
        import jax.numpy as jnp

        y = records["y"]
        precision = self.noise_scale**-2.0
        if self.centred:
            highest = jax.lax.Precision.HIGHEST
            y = y - jnp.matmul(records["x"], messages["mean"], precision=highest)
        return {"slope": y * precision, "bend": jnp.full_like(y, precision)}
