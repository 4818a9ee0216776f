"""Factor analysis and probabilistic PCA as one conjugate model."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.normal_gamma_rows import NormalGammaRows, NormalGammaRowsEta
from fedvi.models.arguments import check_positive, check_ridge
from fedvi.models.capabilities import Arrays, Latents, Parameter
from fedvi.models.forwards import numbered, points
from fedvi.typing import Eta
from fedvi.updates.conjugate import Block, positive_part

__all__ = ["FactorAnalysis"]

# The shares of the squared clip norm for squares of factors, products with x, and squares of x.
_SHARES = (0.3, 0.5, 0.2)
# How much sharper the first q is than the prior: with a flat q, loadings would stay at zero.
_START_STRENGTH = 100.0
_LOG_2PI = math.log(2.0 * math.pi)


@dataclasses.dataclass(frozen=True)
class FactorAnalysis:
    """x_p = w_pᵀz + b_p + e_p with K factors z ~ N(0, I) and e_p ~ N(0, 1/τ_p).

    q is over the rows (w_p, b_p) with their precision τ_p: P normal-gammas. For probabilistic PCA,
    with one τ for all columns, it is one normal-gamma of P rows.

    At q, z given x is N(μ, V) with μ = A x + c. A record adds z̄z̄ᵀ, x z̄ᵀ and x², with z̄ = (μ, 1). V
    follows from q alone. The server adds it once per record, by the count in the last entry of Σ z̄z̄ᵀ.
    Statistics change for tens of rounds, so use ``averaging`` from 0.5 to 0.7 in a private run.

    Records are {"x": [N, P]}; a row with a number that is not finite is ignored.

    Attributes:
      columns: the names of x's P coordinates.
      factors: K, fewer than columns.
      scales: a public guess of the sd of each column; the prior's E[τ] leaves half of its square to
        noise. Probabilistic PCA uses their root mean square for all columns.
      row_norm: ‖x‖ of a typical record, a public number; centre x at a public point first.
      isotropic: whether all columns share one τ.
      precision: prior precision of a loading, in units of τ_p.
      centre_precision: prior precision of each b_p, in units of τ_p.
      noise_shape: α₀ of each τ.
      smallest_noise: the least noise sd of a column, in units of ``scales``, if the statistics have noise.
        Without it, a column that seems fully explained would diverge (Heywood's case).
      seed: the public seed of the first loadings.
      ridge: what noise adds to Σ E[z zᵀ], in units of the largest eigenvalue of the noise alone.

    >>> model = FactorAnalysis(("a", "b", "c"), 1, (1.0, 1.0, 1.0), row_norm=1.7)
    >>> [(block.name, block.number_count) for block in model.blocks]
    [('factors', 3), ('products', 6), ('squares', 3)]

    Source: Ghahramani and Beal (2000), Variational inference for Bayesian mixtures of factor analysers;
    Bishop (1999), Bayesian PCA; docs/proofs/updates.md §7.
    """

    columns: tuple[str, ...]
    factors: int
    scales: tuple[float, ...]
    row_norm: float
    isotropic: bool = False
    precision: float = 1.0
    centre_precision: float = 0.01
    noise_shape: float = 1.0
    smallest_noise: float = 0.05
    seed: int = 0
    ridge: float = 0.5

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.columns):
            raise errors.ModelError(
                f"{len(self.columns)} columns and {len(self.scales)} scales, expected as many of one as "
                "of the other"
            )
        if not 1 <= self.factors < len(self.columns):
            raise errors.ModelError(
                f"factors is {self.factors}, expected from 1 to {len(self.columns) - 1}: fewer than "
                f"the {len(self.columns)} columns",
                "as many factors as columns explain any covariance, and leave no noise to learn",
            )
        check_positive(self, "scales", "row_norm", "precision", "centre_precision")
        check_positive(self, "noise_shape", "smallest_noise")
        check_ridge(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The loadings and the centre of each column, then the precisions of noise."""
        parts = (*(f"factor{k}" for k in range(1, self.factors + 1)), "centre")
        precisions = ("all",) if self.isotropic else self.columns
        return (
            *(f"{column}[{part}]" for column in self.columns for part in parts),
            *(f"precision[{column}]" for column in precisions),
        )

    @property
    def family(self) -> NormalGammaRows:
        """P groups of one row; or one of P rows, if all columns have one τ."""
        groups, rows = (1, len(self.columns)) if self.isotropic else (len(self.columns), 1)
        return NormalGammaRows(groups, rows, self.factors + 1)

    @property
    def prior(self) -> NormalGammaRowsEta:
        """Loadings and centres of mean 0."""
        family = self.family
        diagonal = np.append(np.full(self.factors, self.precision), self.centre_precision)
        shape = np.full(family.groups, self.noise_shape)
        return family.from_parameters(
            np.zeros((family.groups, family.rows, family.columns)),
            np.tile(np.diag(diagonal), (family.groups, 1, 1)),
            shape,
            0.5 * shape * self._variances,
        )

    @property
    def start(self) -> NormalGammaRowsEta:
        """Random loadings, with a sharp q."""
        family, prior = self.family, self.family.parameters(self.prior)
        m, scale, shape, rate = prior
        generator = np.random.default_rng(self.seed)
        sizes = np.asarray(self.scales).reshape(family.groups, family.rows, 1)
        drawn = 0.5 * sizes * generator.standard_normal((*m.shape[:2], self.factors))
        return family.from_parameters(
            np.concatenate([drawn, m[..., -1:]], axis=2), _START_STRENGTH * scale, shape, rate
        )

    @property
    def blocks(self) -> tuple[Block, ...]:
        """z̄z̄ᵀ [K + 1, K + 1], x z̄ᵀ [P, K + 1] and x² [P], or ‖x‖² [1] if all columns have one τ."""
        side, count, norm = self.factors + 1, len(self.columns), self.row_norm
        # For Gaussian columns of one scale, Σ x⁴ is 3‖x‖⁴/P.
        squares = norm**2 * (1.0 if self.isotropic else min(1.0, math.sqrt(3.0 / count)))
        return (
            Block("factors", (side, side), float(side), _SHARES[0], symmetric=True, positive=True),
            Block("products", (count, side), norm * math.sqrt(side), _SHARES[1]),
            Block("squares", (self.family.groups,), squares, _SHARES[2], positive=True),
        )

    @property
    def norm_error(self) -> float:
        """The error of float64 arithmetic, with inputs taken as exact: (2P + 2K + 16) u, u = 2⁻⁵³.

        ‖x‖² and ‖z̄‖² are sums of P and K + 1 squares, none negative: off by γ_P and γ_{K + 1} at most. A
        square norm has at most two factors of these and ten more roundings, those of the weights and of
        the sum of three blocks among them; and a root halves a relative error.
        """
        return (2 * len(self.columns) + 2 * self.factors + 16) * 2.0**-53

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """x [P]."""
        return {"x": (len(self.columns),)}

    def sound(self, records: Arrays) -> np.ndarray:
        """Returns whether all numbers of a record are finite: bool [N]."""
        return np.asarray(np.isfinite(records["x"]).all(axis=1))

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns points in all directions, of norms up to a few times ``row_norm``."""
        return {"x": points(count, len(self.columns), self.row_norm, random)}

    def messages(self, posterior: NormalGammaRowsEta) -> dict[str, np.ndarray]:
        """Returns A [P, K] and c [K]: E[z|x] = x A + c."""
        slope, offset, _ = self._factors_given_x(posterior)
        return {"slope": slope.astype(np.float32), "offset": offset.astype(np.float32)}

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns z̄ = (μ, 1) [B, K + 1]."""
        import jax
        import jax.numpy as jnp

        x = records["x"]
        # On a GPU the default would round to TF32.
        along = jnp.matmul(x, messages["slope"], precision=jax.lax.Precision.HIGHEST)
        return {
            "z": jnp.concatenate(
                [along + messages["offset"][None], jnp.ones_like(x[:, :1])], axis=1
            )
        }

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ‖z̄‖⁴, ‖x‖²‖z̄‖² and Σ x⁴, or ‖x‖⁴ if all columns have one τ: [B] each."""
        squares = records["x"] ** 2
        of_x, of_z = squares.sum(axis=1), (local["z"] ** 2).sum(axis=1)
        fourth = of_x * of_x if self.isotropic else (squares * squares).sum(axis=1)
        return {"factors": of_z * of_z, "products": of_x * of_z, "squares": fourth}

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns Σ w·z̄z̄ᵀ [K + 1, K + 1], Σ w·x z̄ᵀ [P, K + 1] and Σ w·x² [P] or [1]."""
        x, z = records["x"], local["z"]
        weighted = z * weights[:, None]
        squares = (x**2).sum(axis=1, keepdims=True) if self.isotropic else x**2
        return {"factors": weighted.T @ z, "products": x.T @ weighted, "squares": weights @ squares}

    def factor(self, sums: Arrays, posterior: NormalGammaRowsEta) -> NormalGammaRowsEta:
        """Returns (Σ x z̄ᵀ, Σ E[z̄z̄ᵀ], ½ R N, ½ Σ x²), with N times the V of the broadcast q."""
        family = self.family
        squares = np.array(sums["factors"], np.float64)
        count = squares[-1, -1]
        squares[:-1, :-1] += count * self._factors_given_x(posterior)[2]
        return NormalGammaRowsEta(
            np.reshape(sums["products"], (family.groups, family.rows, family.columns)),
            np.tile(squares, (family.groups, 1, 1)),
            np.full(family.groups, 0.5 * family.rows * count),
            0.5 * sums["squares"],
        )

    def posterior(
        self, total: NormalGammaRowsEta, noise: Mapping[str, float]
    ) -> NormalGammaRowsEta:
        """Returns prior + total, with Σ E[z̄z̄ᵀ] projected, the count at least 0 and each τ bounded.

        If the statistics have noise, the part of Σ x² that loadings leave unexplained is at least the
        square of ``smallest_noise`` times the squared scale times the count.
        """
        family, prior = self.family, self.prior
        sd = noise.get("factors", 0.0)
        squares = positive_part(total.J[0], sd, self.ridge)
        power = prior.power + np.maximum(total.power, 0.0)
        shape = power - 0.5 * family.rows * family.columns + 1.0
        least = prior.rate.copy()
        if sd > 0.0:
            least = np.maximum(least, shape * self._variances * self.smallest_noise**2)
        J = prior.J + squares
        m = np.linalg.solve(J, total.h.swapaxes(1, 2)).swapaxes(1, 2)
        explained = 0.5 * (m * total.h).sum(axis=(1, 2))
        left = np.maximum(prior.rate + total.rate - explained, least)
        return NormalGammaRowsEta(total.h, J, power, left + explained)

    def scores(self, posterior: NormalGammaRowsEta, x: np.ndarray) -> np.ndarray:
        """Returns E[z | x] [n, K] for each row of x [n, P], at q. NumPy."""
        slope, offset, _ = self._factors_given_x(posterior)
        return np.asarray(x @ slope + offset)

    def _factors_given_x(self, q: NormalGammaRowsEta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns A [P, K], c [K] and V [K, K] of q(z) = N(x A + c, V).

        V⁻¹ = I + Σ_p E[τ_p w_p w_pᵀ], A = E[τ_p w_p] V, c = −Σ_p E[τ_p b_p w_pᵀ] V.
        """
        mean = self.family.mean(q)
        squares = -2.0 * mean.J.sum(axis=0)
        along = mean.h.reshape(len(self.columns), -1)[:, :-1]
        covariance = np.linalg.inv(np.eye(self.factors) + squares[:-1, :-1])
        return along @ covariance, -squares[-1, :-1] @ covariance, covariance

    @property
    def _variances(self) -> np.ndarray:
        """The squared scale of each group, [G]."""
        return (np.asarray(self.scales) ** 2.0).reshape(self.family.groups, -1).mean(axis=1)

    @property
    def row(self) -> tuple[str, ...]:
        """The columns."""
        return self.columns

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Returns "loadings", "centres" and "precisions" of columns."""
        family, count = self.family, len(self.columns)
        rows, precisions = np.split(theta, [family.groups * family.rows * family.columns], axis=1)
        rows = rows.reshape(-1, count, self.factors + 1)
        column = ("column", self.columns)
        factor = ("factor", numbered(self.factors, 1))
        return {
            "loadings": Parameter(rows[..., :-1], (column, factor)),
            "centres": Parameter(rows[..., -1], (column,)),
            "precisions": Parameter(
                np.broadcast_to(precisions, (len(theta), count)).copy(), (column,)
            ),
        }

    def draw(self, at: Arrays, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws factors, then the columns."""
        scores = random.standard_normal((count, self.factors))
        noise = random.standard_normal((count, len(self.columns))) / np.sqrt(at["precisions"])
        return {"x": scores @ at["loadings"].T + at["centres"] + noise}

    def log_density(self, at: Arrays, records: Arrays) -> np.ndarray:
        """Returns log N(x; centres, W Wᵀ + Ψ), [n]."""
        covariance = at["loadings"] @ at["loadings"].T + np.diag(1.0 / at["precisions"])
        root = np.linalg.cholesky(covariance)
        apart = np.linalg.solve(root, (records["x"] - at["centres"]).T)
        constant = np.log(np.diag(root)).sum() + 0.5 * len(root) * _LOG_2PI
        return np.asarray(-0.5 * (apart**2).sum(axis=0) - constant)

    def latents(self, posterior: Eta) -> Latents:
        """Returns how to infer the mean of each factor."""
        return Latents(
            "mean of each factor",
            tuple(f"factor {k + 1}" for k in range(self.factors)),
            lambda records: self.scores(posterior, records["x"]),
        )
