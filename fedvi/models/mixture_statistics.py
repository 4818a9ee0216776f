"""Gaussian mixtures with full covariances, as a conjugate model.

``examples/one-table`` has a NumPyro mixture with assignments summed out, for any guide and solver.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from fedvi import errors
from fedvi.expfam.dirichlet import DirichletEta, dirichlet
from fedvi.expfam.matrices import from_triangle
from fedvi.expfam.normal_wishart import NormalWishart, NormalWishartEta
from fedvi.expfam.product import Product
from fedvi.models.arguments import check_positive, check_ridge
from fedvi.models.capabilities import Arrays, Latents, Parameter
from fedvi.models.forwards import numbered, points, shares
from fedvi.typing import Eta
from fedvi.updates.conjugate import Block, positive_part

__all__ = ["GaussianMixture"]

# The shares of the squared clip norm for counts, sums and squares of a typical record.
_SHARES = (0.2, 0.4, 0.4)
_LOG_2PI = math.log(2.0 * math.pi)
# The least count by which sums are divided.
_LEAST_COUNT = 1e-12


@dataclasses.dataclass(frozen=True)
class GaussianMixture:
    """x ~ Σₖ wₖ N(mₖ, Λₖ⁻¹) with q(w) Dirichlet and q(mₖ, Λₖ) normal-Wishart.

    A record adds r, r⊗x and r⊗x xᵀ to the counts, sums and squares of components, where r [K] are its
    responsibilities at q. The initial means of components are public: given, or drawn around the
    prior's mean, and never chosen from the data, as k-means would do.

    Statistics change for tens of rounds, so use ``averaging`` from 0.5 to 0.7. A ``row_norm`` below the
    norms of a cluster's records moves its mean inwards, since distant records are clipped more.

    Records are {"x": [N, d]}; a row with a number that is not finite is ignored.

    Attributes:
      columns: the names of x's d coordinates.
      components: K, at least 2.
      scales: a public guess of the sd of each coordinate within a component: the prior's E[Λ] is
        diag(scales⁻²).
      row_norm: ‖x‖ of a typical record, a public number; centre x at a public point first.
      concentration: the concentration of the Dirichlet prior for each component.
      centre: the prior mean of each mₖ; empty: 0.
      strength: κ₀, how many records the prior of a mean counts as.
      degrees: ν₀ > d − 1, the prior's degrees of freedom; left out, d + 2.
      start_means: K points; empty: drawn around the centre.
      spread: the sd of drawn start means around the centre, in units of ``scales``.
      seed: the public seed of that draw.
      ridge: what noise adds to a scatter matrix, in units of the noise's largest eigenvalue.

    >>> model = GaussianMixture(("a", "b"), 3, (1.0, 1.0), row_norm=4.0)
    >>> [(block.name, block.number_count) for block in model.blocks]
    [('count', 3), ('first', 6), ('second', 9)]

    Source: Bishop (2006), Pattern Recognition and Machine Learning, §10.2; docs/proofs/updates.md §7.
    """

    columns: tuple[str, ...]
    components: int
    scales: tuple[float, ...]
    row_norm: float
    concentration: float = 1.0
    centre: tuple[float, ...] = ()
    strength: float = 0.1
    degrees: float | None = None
    start_means: tuple[tuple[float, ...], ...] = ()
    spread: float = 3.0
    seed: int = 0
    ridge: float = 0.5

    def __post_init__(self) -> None:
        d = len(self.columns)
        if d < 1 or len(self.scales) != d:
            raise errors.ModelError(
                f"{d} columns and {len(self.scales)} scales, expected as many of one as of the other, "
                "and at least one"
            )
        if self.components < 2:
            raise errors.ModelError(
                f"components is {self.components}, expected at least 2",
                "one component is a Gaussian: its mean and covariance need no latents",
            )
        if self.centre and len(self.centre) != d:
            raise errors.ModelError(
                f"centre has {len(self.centre)} numbers, expected one of each of the {d} columns"
            )
        shape = (self.components, d)
        if self.start_means and tuple(map(len, self.start_means)) != (d,) * self.components:
            raise errors.ModelError(
                f"start_means are {len(self.start_means)} points of "
                f"{sorted(set(map(len, self.start_means)))} numbers, expected {shape[0]} of {d}",
                "leave them out, and they are drawn around `centre` by `seed`",
            )
        check_positive(self, "row_norm", "scales", "concentration", "strength", "spread")
        if not d - 1 < self._degrees < math.inf:
            raise errors.ModelError(f"degrees is {self.degrees}, expected more than {d - 1}")
        check_ridge(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Weights, then means, then the lower triangles of precisions."""
        parts = range(1, self.components + 1)
        rows, columns = np.tril_indices(len(self.columns))
        pairs = [(self.columns[i], self.columns[j]) for i, j in zip(rows, columns, strict=True)]
        return (
            *(f"weight[{k}]" for k in parts),
            *(f"mean[{k},{column}]" for k in parts for column in self.columns),
            *(f"precision[{k},{left},{right}]" for k in parts for left, right in pairs),
        )

    @property
    def family(self) -> Product:
        """Dirichlet × K normal-Wisharts."""
        return Product((dirichlet(self.components), self._pairs))

    @property
    def prior(self) -> tuple[DirichletEta, NormalWishartEta]:
        """The same for all components."""
        return self._with_means(np.tile(self._centre, (self.components, 1)))

    @property
    def start(self) -> tuple[DirichletEta, NormalWishartEta]:
        """The prior, with a different mean for each component."""
        if self.start_means:
            return self._with_means(np.asarray(self.start_means, np.float64))
        generator = np.random.default_rng(self.seed)
        noise = generator.standard_normal((self.components, len(self.columns)))
        return self._with_means(self._centre + self.spread * np.asarray(self.scales) * noise)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """r [K], r⊗x [K, d] and r⊗x xᵀ [K, d, d]; a typical record belongs to one component."""
        count, d = self.components, len(self.columns)
        return (
            Block("count", (count,), 1.0, _SHARES[0], positive=True, total=1.0),
            Block("first", (count, d), self.row_norm, _SHARES[1]),
            Block(
                "second", (count, d, d), self.row_norm**2, _SHARES[2], symmetric=True, positive=True
            ),
        )

    @property
    def norm_error(self) -> float:
        """The error of float64 arithmetic, with inputs taken as exact: (K + 2d + 16) u, u = 2⁻⁵³.

        ‖r‖² and ‖x‖² are sums of K and d squares, none negative: off by γ_K and γ_d at most. A square norm
        has one factor of the first, two of the second and at most ten more roundings, those of the
        weights and of the sum of three blocks among them; and a root halves a relative error.
        """
        return (self.components + 2 * len(self.columns) + 16) * 2.0**-53

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """x [d]."""
        return {"x": (len(self.columns),)}

    def sound(self, records: Arrays) -> np.ndarray:
        """Returns whether all numbers of a record are finite: bool [N]."""
        return np.asarray(np.isfinite(records["x"]).all(axis=1))

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns points around the centre, of norms up to a few times ``row_norm``."""
        return {"x": self._centre + points(count, len(self.columns), self.row_norm, random)}

    def messages(self, posterior: Eta) -> dict[str, np.ndarray]:
        """Returns L [K, d, d] with E[Λ] = L Lᵀ, Lᵀm [K, d], and the offset of each log r [K]."""
        roots, centres, offsets = self._scores(posterior)
        return {
            "root": roots.astype(np.float32),
            "centre": centres.astype(np.float32),
            "offset": (offsets - offsets.max()).astype(np.float32),
        }

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns responsibilities r [B, K]."""
        import jax
        import jax.numpy as jnp

        x = records["x"]

        def distance(part: Any) -> Any:
            root, centre = part
            # On a GPU the default would round to TF32.
            apart = jnp.matmul(x, root, precision=jax.lax.Precision.HIGHEST) - centre[None]
            return (apart**2).sum(axis=1)

        squares = jax.lax.map(distance, (messages["root"], messages["centre"]))
        logits = messages["offset"][:, None] - 0.5 * squares
        return {"r": jax.nn.softmax(logits, axis=0).T}

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ‖r‖², ‖r‖²‖x‖² and ‖r‖²‖x‖⁴, [B] each."""
        whole, square = (local["r"] ** 2).sum(axis=1), (records["x"] ** 2).sum(axis=1)
        return {"count": whole, "first": whole * square, "second": whole * square * square}

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns Σ w·r [K], Σ w·r⊗x [K, d] and Σ w·r⊗x xᵀ [K, d, d], one component after the other."""
        import jax

        x, shares = records["x"], local["r"] * weights[:, None]
        return {
            "count": shares.sum(axis=0),
            "first": shares.T @ x,
            "second": jax.lax.map(lambda share: (x * share[:, None]).T @ x, shares.T),
        }

    def factor(self, sums: Arrays, posterior: Eta) -> Eta:
        """Returns the sums as natural parameters: (count), (first, count, ½ count, ½ second)."""
        count = sums["count"]
        return (
            DirichletEta(count),
            NormalWishartEta(sums["first"], count, 0.5 * count, 0.5 * sums["second"]),
        )

    def posterior(
        self, total: tuple[DirichletEta, NormalWishartEta], noise: Mapping[str, float]
    ) -> tuple[DirichletEta, NormalWishartEta]:
        """Returns prior + total, with totals made valid.

        A count n⁺ is at least 0. Means are sums divided by n′, the larger of the count and its noise. The
        squares about these means are projected, with a ridge if there is noise. Sums and squares are
        weighted by n⁺/n′, so that empty components keep their prior. So each component's (squares, sums,
        count) is a positive semidefinite matrix, and the prior plus it is proper.
        """
        prior_weights, prior_pairs = self.prior
        weights, pairs = total
        kept = np.maximum(weights.power, 0.0)
        within = np.maximum(kept, max(noise.get("count", 0.0), _LEAST_COUNT))
        means = pairs.h / within[:, None]
        square = (means**2).sum(axis=1)
        products = within[:, None, None] * means[:, :, None] * means[:, None, :]
        # The noise of squares less n′·m mᵀ, to first order in the noise of sums and counts.
        spread = np.sqrt(
            noise.get("second", 0.0) ** 2
            + 2.0 * square * noise.get("first", 0.0) ** 2
            + square**2 * noise.get("count", 0.0) ** 2
        )
        scatter = np.stack(
            [
                positive_part(part, float(sd), self.ridge)
                for part, sd in zip(2.0 * pairs.rate - products, spread, strict=True)
            ]
        )
        believed = (kept / within)[:, None, None]
        return (
            DirichletEta(prior_weights.power + kept),
            NormalWishartEta(
                prior_pairs.h + kept[:, None] * means,
                prior_pairs.J + kept,
                prior_pairs.power + 0.5 * kept,
                prior_pairs.rate + 0.5 * believed * (scatter + products),
            ),
        )

    def responsibilities(self, posterior: Eta, x: np.ndarray) -> np.ndarray:
        """Returns how likely each row of x [n, d] comes from each component, [n, K], at q. NumPy."""
        roots, centres, offsets = self._scores(posterior)
        squares = [
            ((x @ root - at) ** 2).sum(axis=1) for root, at in zip(roots, centres, strict=True)
        ]
        logits = offsets - 0.5 * np.stack(squares, axis=1)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def _scores(self, posterior: Eta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns L [K, d, d], Lᵀm [K, d] and E[log w] + ½ E[log|Λ|] − ½ d/κ [K]."""
        weights, pairs = self.family.parts[0].mean(posterior[0]), self._pairs.mean(posterior[1])
        m, scale, shape, rate = self._pairs.parameters(posterior[1])
        # The root of E[Λ] = a B⁻¹ comes from that of B, which is stable if noise spreads B's eigenvalues.
        inverse = np.linalg.inv(np.linalg.cholesky(rate))
        roots = np.sqrt(shape)[:, None, None] * inverse.swapaxes(1, 2)
        offsets = weights.power + 0.5 * pairs.power - 0.5 * len(self.columns) / scale
        return roots, (m[:, None, :] @ roots)[:, 0], offsets

    def _with_means(self, means: np.ndarray) -> tuple[DirichletEta, NormalWishartEta]:
        count = self.components
        shape = np.full(count, 0.5 * self._degrees)
        rate = 0.5 * self._degrees * np.diag(np.asarray(self.scales) ** 2.0)
        return (
            DirichletEta(np.full(count, self.concentration - 1.0)),
            self._pairs.from_parameters(
                means, np.full(count, self.strength), shape, np.tile(rate, (count, 1, 1))
            ),
        )

    @property
    def _pairs(self) -> NormalWishart:
        return NormalWishart(self.components, len(self.columns))

    @property
    def _centre(self) -> np.ndarray:
        return np.asarray(self.centre or (0.0,) * len(self.columns), np.float64)

    @property
    def _degrees(self) -> float:
        return len(self.columns) + 2.0 if self.degrees is None else self.degrees

    @property
    def row(self) -> tuple[str, ...]:
        """The columns."""
        return self.columns

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Returns "weights", "means" and "precisions" of components."""
        weights, pairs = self.family.split(theta)
        count, d = self.components, len(self.columns)
        means, triangles = np.split(pairs, [count * d], axis=1)
        precisions = from_triangle(triangles.reshape(len(theta), count, -1), d)
        component = ("component", numbered(count, 1))
        column, other = ("column", self.columns), ("other_column", self.columns)
        return {
            "weights": Parameter(weights, (component,)),
            "means": Parameter(means.reshape(-1, count, d), (component, column)),
            "precisions": Parameter(precisions, (component, column, other)),
        }

    def draw(self, at: Arrays, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws each record from a component."""
        component = random.choice(self.components, count, p=shares(at["weights"]))
        noise = random.standard_normal((count, len(self.columns)))
        x = np.empty_like(noise)
        for k in range(self.components):
            here = component == k
            # Λ = L Lᵀ, so that L⁻ᵀ·noise has covariance Λ⁻¹.
            root = np.linalg.cholesky(at["precisions"][k])
            x[here] = at["means"][k] + np.linalg.solve(root.T, noise[here].T).T
        return {"x": x}

    def log_density(self, at: Arrays, records: Arrays) -> np.ndarray:
        """Returns log Σₖ wₖ N(x; mₖ, Λₖ⁻¹), [n]."""
        scores = []
        for weight, mean, precision in zip(
            at["weights"], at["means"], at["precisions"], strict=True
        ):
            root = np.linalg.cholesky(precision)
            apart = (records["x"] - mean) @ root
            constant = math.log(weight) + np.log(np.diag(root)).sum() - 0.5 * len(mean) * _LOG_2PI
            scores.append(constant - 0.5 * (apart**2).sum(axis=1))
        return np.asarray(scipy.special.logsumexp(scores, axis=0))

    def latents(self, posterior: Eta) -> Latents:
        """Returns how to infer the probability of each component."""
        return Latents(
            "probability of each component",
            tuple(f"component {k + 1}" for k in range(self.components)),
            lambda records: self.responsibilities(posterior, records["x"]),
        )
