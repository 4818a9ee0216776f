"""Linear regression with unknown noise as a conjugate model: exact after one round with one release."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedvi.expfam.normal_gamma_rows import NormalGammaRows, NormalGammaRowsEta
from fedvi.models.arguments import check_coefficients, check_positive, check_ridge
from fedvi.models.capabilities import Arrays, Measure, Parameter
from fedvi.models.forwards import LIKELIHOOD, points
from fedvi.typing import Eta
from fedvi.updates.conjugate import Block, positive_part

__all__ = ["Line", "UnknownNoise"]

# The share of the squared clip norm for the count, which is one number among many.
_COUNT_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class UnknownNoise:
    """y ~ N(xᵀw, 1/τ) with q(w, τ) = N(w; m, (τΛ)⁻¹) Gamma(τ; α, β): the exact posterior, without latents.

    A record adds u uᵀ, u = (x, y/s), and 1: the moments of all columns are released together,
    with sensitivity ‖u‖² and not that of three releases. No statistic depends on q, so one round
    is enough; more rounds average noise, but need more noise each.

    Records are {"x": [N, D], "y": [N]}; a row with a number that is not finite is ignored.

    Attributes:
      coefficients: the names of w's D coordinates, including any intercept.
      prior_scales: prior standard deviation of each coefficient at the expected noise.
      row_norm: ‖x‖ of a typical record, a public number.
      outcome_scale: s, the public scale of y: |y| of a typical record.
      noise_scale: a public guess of the noise sd: the prior's E[τ] is noise_scale⁻².
      noise_shape: α₀, the weight of the guess, which counts as 2α₀ records.
      ridge: what noise adds to Σ x xᵀ, in units of the largest eigenvalue of the noise alone.

    >>> model = UnknownNoise(("one", "age"), (10.0, 10.0), row_norm=1.4)
    >>> [(block.name, block.number_count) for block in model.blocks]
    [('moments', 6), ('count', 1)]

    Source: Bishop (2006), Pattern Recognition and Machine Learning, exercise 3.12;
    docs/proofs/updates.md §7.
    """

    coefficients: tuple[str, ...]
    prior_scales: tuple[float, ...]
    row_norm: float
    outcome_scale: float = 1.0
    noise_scale: float = 1.0
    noise_shape: float = 1.0
    ridge: float = 0.5
    predicted: ClassVar[tuple[str, str]] = (
        "mean of y, in the unit of the file",
        "the noise is too uncertain for an outcome to have a mean: model.noise_shape is at most ½",
    )

    def __post_init__(self) -> None:
        check_coefficients(self)
        check_positive(
            self, "row_norm", "outcome_scale", "noise_scale", "noise_shape", "prior_scales"
        )
        check_ridge(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The coefficients, then the noise's precision."""
        return (*self.coefficients, "precision")

    @property
    def family(self) -> NormalGammaRows:
        """One precision, one row of coefficients."""
        return NormalGammaRows(1, 1, len(self.coefficients))

    @property
    def prior(self) -> NormalGammaRowsEta:
        """w ~ N(0, diag(scales²)·noise_scale⁻²/τ), τ ~ Gamma(α₀, α₀·noise_scale²)."""
        variance, size = self.noise_scale**2.0, len(self.coefficients)
        return self.family.from_parameters(
            np.zeros((1, 1, size)),
            np.diag(variance * np.asarray(self.prior_scales) ** -2.0)[None],
            np.array([self.noise_shape]),
            np.array([self.noise_shape * variance]),
        )

    @property
    def start(self) -> NormalGammaRowsEta:
        """The prior."""
        return self.prior

    @property
    def blocks(self) -> tuple[Block, ...]:
        """u uᵀ [D + 1, D + 1] and 1 [1]."""
        side = len(self.coefficients) + 1
        norm = self.row_norm**2 + 1.0
        return (
            Block("moments", (side, side), norm, 1.0 - _COUNT_SHARE, symmetric=True, positive=True),
            Block("count", (1,), 1.0, _COUNT_SHARE, positive=True, total=1.0),
        )

    @property
    def norm_error(self) -> float:
        """The error of float64 arithmetic, with inputs taken as exact: (2D + 16) u, u = 2⁻⁵³.

        ‖u‖² is a sum of D + 1 squares, none negative: off by γ_{D + 1} at most. A square norm has two
        factors of it and at most ten more roundings, those of the weights and of the sum of two blocks
        among them; and a root halves a relative error.
        """
        return (2 * len(self.coefficients) + 16) * 2.0**-53

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """x [D] and y."""
        return {"x": (len(self.coefficients),), "y": ()}

    def sound(self, records: Arrays) -> np.ndarray:
        """Returns whether all numbers of a record are finite: bool [N]."""
        return np.asarray(np.isfinite(records["x"]).all(axis=1) & np.isfinite(records["y"]))

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns rows and outcomes of norms up to a few times the typical ones."""
        return {
            "x": points(count, len(self.coefficients), self.row_norm, random),
            "y": self.outcome_scale * random.uniform(-3.0, 3.0, count),
        }

    def messages(self, posterior: Eta) -> dict[str, np.ndarray]:
        """Returns nothing: no statistic depends on q."""
        return {}

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns y/s [B]."""
        return {"y": records["y"] / self.outcome_scale}

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ‖u‖⁴ and 1, [B] each."""
        import jax.numpy as jnp

        square = (records["x"] ** 2).sum(axis=1) + local["y"] ** 2
        return {"moments": square * square, "count": jnp.ones_like(square)}

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns Σ w·u uᵀ [D + 1, D + 1] and Σ w [1]."""
        import jax.numpy as jnp

        u = jnp.concatenate([records["x"], local["y"][:, None]], axis=1)
        return {"moments": (u * weights[:, None]).T @ u, "count": weights.sum(keepdims=True)}

    def factor(self, sums: Arrays, posterior: Eta) -> NormalGammaRowsEta:
        """Returns (Σ y·x, Σ x xᵀ, ½ N, ½ Σ y²)."""
        moments, scale = sums["moments"], self.outcome_scale
        return NormalGammaRowsEta(
            scale * moments[None, None, -1, :-1],
            moments[None, :-1, :-1],
            0.5 * sums["count"],
            0.5 * scale**2 * moments[None, -1, -1],
        )

    def posterior(
        self, total: NormalGammaRowsEta, noise: Mapping[str, float]
    ) -> NormalGammaRowsEta:
        """Returns prior + total, with the moments projected and the count at least 0.

        The moments of all columns are projected together, so that the residual part of y² is not
        negative. The ridge is added to those of x alone, since on y² it would look like noise.
        """
        scale, prior = self.outcome_scale, self.prior
        size = len(self.coefficients)
        moments = np.zeros((size + 1, size + 1))
        moments[:-1, :-1] = total.J[0]
        moments[-1, :-1] = moments[:-1, -1] = total.h[0, 0] / scale
        moments[-1, -1] = 2.0 * total.rate[0] / scale**2
        sd = noise.get("moments", 0.0)
        moments = positive_part(moments, sd, 0.0)
        edge = self.ridge * sd * math.sqrt(2.0 * (size + 1))
        return NormalGammaRowsEta(
            prior.h + scale * moments[None, None, -1, :-1],
            prior.J + moments[None, :-1, :-1] + edge * np.eye(size),
            prior.power + np.maximum(total.power, 0.0),
            prior.rate + 0.5 * scale**2 * moments[None, -1, -1],
        )

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Returns "coefficients" and "noise_precision"."""
        return {
            "coefficients": Parameter(theta[:, :-1], (("coefficient", self.coefficients),)),
            "noise_precision": Parameter(theta[:, -1]),
        }

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """The arrays that predict an outcome: x."""
        return {name: shape for name, shape in self.layout.items() if name != "y"}

    def draw_outcomes(
        self, at: Arrays, given: Arrays, random: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Draws y given x."""
        centre = given["x"] @ at["coefficients"]
        return {"y": centre + random.standard_normal(len(centre)) / np.sqrt(at["noise_precision"])}

    def line(self, posterior: Eta, x: np.ndarray) -> "Line":
        """Returns the distributions under q of xᵀw and of y given x [n, D], in closed form.

            xᵀw ~ t_{2α}(xᵀm, √(β/α · xᵀΛ⁻¹x))   and   y ~ t_{2α}(xᵀm, √(β/α · (1 + xᵀΛ⁻¹x)))

        Source: Bishop (2006), Pattern Recognition and Machine Learning, exercise 3.13.
        """
        found = self.family.parameters(posterior)
        m, precision, shape, rate = (np.asarray(each, np.float64)[0] for each in found)
        # Λ = L Lᵀ, so that xᵀΛ⁻¹x = ‖L⁻¹x‖².
        along = np.linalg.solve(np.linalg.cholesky(precision), x.T)
        square = (along**2).sum(axis=0)
        unit = rate / shape
        scale, outcome_scale = np.sqrt(unit * square), np.sqrt(unit + unit * square)
        return Line(2.0 * float(shape), x @ m[0], scale, outcome_scale)

    def predict(
        self, posterior: Eta, arrays: Arrays, ends: tuple[float, float]
    ) -> tuple[np.ndarray, ...]:
        """Returns mean and sd of xᵀw, and quantiles of xᵀw and of y; NaN where α is at most ½."""
        found = self.line(posterior, arrays["x"])
        mean = found.centre if found.freedom > 1.0 else np.full_like(found.centre, math.nan)
        told = [mean, found.sd]
        for scale in (found.scale, found.outcome_scale):
            told += [found.quantile(end, scale) for end in ends]
        return tuple(told)

    def measure(self, posterior: Eta, records: Arrays, draws: int, seed: int) -> Measure:
        """Returns the mean log-likelihood, by Student's t."""
        import scipy.stats

        found = self.line(posterior, records["x"])
        logs = scipy.stats.t.logpdf(records["y"], found.freedom, found.centre, found.outcome_scale)
        return Measure(LIKELIHOOD, float(logs.mean()), 0)


class Line(NamedTuple):
    """Student's t distributions of xᵀw and of y for n records, by centre and scale.

    Attributes:
      freedom: 2α.
      centre: xᵀm, [n].
      scale: the scale of xᵀw, [n], which is not its standard deviation.
      outcome_scale: the scale of y, [n].
    """

    freedom: float
    centre: np.ndarray
    scale: np.ndarray
    outcome_scale: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """The standard deviation of xᵀw, [n]; infinite unless α > 1."""
        if self.freedom <= 2.0:
            return np.full_like(self.scale, math.inf)
        return self.scale * math.sqrt(self.freedom / (self.freedom - 2.0))

    def quantile(self, probability: float, scale: np.ndarray) -> np.ndarray:
        """Returns the quantile at one of the two scales, [n]."""
        import scipy.stats

        return self.centre + float(scipy.stats.t.ppf(probability, self.freedom)) * scale
