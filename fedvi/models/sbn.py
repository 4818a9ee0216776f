"""Sigmoid belief networks with one layer of hidden units, as a conjugate model."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from fedvi import errors
from fedvi.expfam.draws import thetas
from fedvi.expfam.gaussian import DiagonalGaussian, GaussianEta
from fedvi.expfam.product import Product
from fedvi.models.arguments import check_positive, check_ridge, check_whole
from fedvi.models.capabilities import Arrays, Measure, Parameter, at_draw
from fedvi.models.forwards import numbered
from fedvi.typing import Eta
from fedvi.updates.conjugate import Block

__all__ = ["SigmoidBeliefNetwork"]

# Public assumptions on a typical record: squares of E[z_k] are 0.4 on average; root mean squares are 0.2
# for E[ω], 0.3 for y − E[y], 0.1 for z(1 − z) and 0.45 for z − ½.
_LIT, _BEND, _MISS, _DOUBT, _HALF = 0.4, 0.2, 0.3, 0.1, 0.45
# Bounds on learnt prior precisions of weights, in units of the declared one: noise in the means feeds back
# into them, and without a floor weights diverge (docs/proofs/updates.md §7).
_SMALLEST, _LARGEST = 1e-2, 1e4
_ITERATIONS = 20
# The precision of the first q, and the deviation of its means (docs/proofs/updates.md §8): units that
# start alike stay alike, and units with a wide q die out.
_START_PRECISION, _START_WEIGHT = 100.0, 0.3
_RECONSTRUCTED = "share of units reconstructed correctly"
_CONSTANT = "the same for the best constant prediction"
_AT_LEAST = "mean log-likelihood, at least"
# How many units are in memory at a time.
_AT_ONCE = 1 << 22


@dataclasses.dataclass(frozen=True)
class SigmoidBeliefNetwork:
    """K hidden units z_k ~ Bernoulli(σ(b_k)) and P visible ones y_j ~ Bernoulli(σ(w_jᵀz + c_j)).

    With Pólya-Gamma latents, the visible units' bound is jointly Gaussian in (w_j, c_j). The hidden units'
    bound is Gaussian in b; its latents depend on q(b) alone and cost nothing. All numbers are independent
    under q.

    With ẑ = (z, 1) and ω_j short for E[ω_j], a record adds ω_jẑ to J. To h it adds the term that moves each
    number to its optimum given the others, (y_j − ½)ẑ_k − ω_j Σ_{l≠k} E[ẑ_k ẑ_l] w_jl, which is
    r_j ẑ_k + (ω_j ẑ_k − ω_j z_k(1 − z_k)) w_jk with r_j = y_j − ½ − ω_j w_jᵀẑ. Three outer products are
    released, r with ẑ, ω with ẑ and ω with z(1 − z); w is the broadcast mean.

    All numbers of a row move at once, each as if the others were fixed. The step is too long by a factor
    of the number of hidden units that are on together, K / 2 at first, unless a running mean of answers
    shortens it: at ρ ≤ 4 / K it is a damped Newton step, with the same fixed point. With ``averaging`` κ
    this needs ``delay`` = (K / 4)^(1/κ): at κ = 0.7, 37 for 50 units and 100 for 100. The mean does not
    start at zero, but at ``start`` weighted with the number of records (see ``first``).

    Attributes:
      visible: P.
      hidden: K; it may exceed P. Units beyond P are left to the priors; ``shrinkage`` removes unused units.
      weight_scale: prior standard deviation of W.
      bias_scale: prior standard deviation of b and c.
      shrinkage: whether prior precisions of W are learnt, one each, under the three-parameter beta normal
        prior: w ~ N(0, ζ_jk), ζ_jk ~ Gamma(½, ξ_jk), ξ_jk ~ Gamma(½, φ_k), φ_k ~ Gamma(½, ω) and
        ω ~ Gamma(½, 1), in units of ``weight_scale``.
      sweeps: how often each hidden unit of a record is updated.
      ridge: the lower bound on entries of J, in standard deviations of the noise.
      largest: the bound on the absolute value of posterior means.
      seed: the seed of the weights of ``start``; at least 0.

    Raises:
      ModelError: a field is out of its range, or must be a whole number and is not.

    >>> model = SigmoidBeliefNetwork(visible=4, hidden=2)
    >>> [(block.name, block.shape) for block in model.blocks][:2]
    [('h', (4, 3)), ('J', (4, 3))]

    Source: Gan, Henao, Carlson and Carin (2015), AISTATS; Park et al. (2020), VIPS, JAIR 68, §6, with the
    corrections of docs/proofs/updates.md §8; Armagan, Clyde and Dunson (2011) for the prior.
    """

    visible: int
    hidden: int
    weight_scale: float = 1.0
    bias_scale: float = 3.0
    shrinkage: bool = False
    sweeps: int = 3
    ridge: float = 0.5
    largest: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("visible", 1), ("hidden", 1), ("sweeps", 1), ("seed", 0)):
            check_whole(name, getattr(self, name), least)
        check_positive(self, "weight_scale", "bias_scale", "largest")
        check_ridge(self)

    @property
    def names(self) -> tuple[str, ...]:
        """w[j,k] for all k and c[j], for all j; then b[k]."""
        rows = (
            (*(f"w[{j},{k}]" for k in range(self.hidden)), f"c[{j}]") for j in range(self.visible)
        )
        return (*(name for row in rows for name in row), *(f"b[{k}]" for k in range(self.hidden)))

    @property
    def family(self) -> Product:
        """Gaussians of each visible unit's weights and bias, and of the hidden units' biases."""
        weights = DiagonalGaussian(self.visible * (self.hidden + 1))
        return Product((weights, DiagonalGaussian(self.hidden)))

    @property
    def prior(self) -> tuple[GaussianEta, GaussianEta]:
        """Independent N(0, scale²)."""
        precisions, biases = self._precisions, np.full(self.hidden, self.bias_scale**-2.0)
        weights = _eta(np.zeros(precisions.shape), precisions)
        return weights, GaussianEta(np.zeros(self.hidden), biases)

    @property
    def start(self) -> tuple[GaussianEta, GaussianEta]:
        """Weights of N(0, 0.3²), seeded, and biases of 0, all with a standard deviation of 0.1."""
        generator = np.random.default_rng(self.seed)
        shape = (self.visible, self.hidden + 1)
        mean = _START_WEIGHT * generator.standard_normal(shape)
        mean[:, -1] = 0.0
        sharp = np.full(shape, _START_PRECISION)
        weights = _eta(_START_PRECISION * mean, sharp)
        return weights, GaussianEta(np.zeros(self.hidden), np.full(self.hidden, _START_PRECISION))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The visible units' blocks, then z − ½ [K] and the number of records [1]."""
        width, rows = self.hidden + 1, self.visible
        lit = _LIT * self.hidden + 1.0
        bent = _BEND * math.sqrt(rows)
        return (
            Block("h", (rows, width), _MISS * math.sqrt(rows * lit), 0.75),
            Block("J", (rows, width), bent * math.sqrt(lit), 0.19, positive=True),
            Block(
                "V",
                (rows, self.hidden),
                bent * _DOUBT * math.sqrt(self.hidden),
                0.03,
                positive=True,
            ),
            Block("b", (self.hidden,), _HALF * math.sqrt(self.hidden), 0.02),
            Block("count", (1,), 1.0, 0.01, positive=True, total=1.0),
        )

    @property
    def norm_error(self) -> float:
        """A bound on the relative error of norms, with inputs taken as exact.

        All squares are sums of at most n = P + K + 1 positive terms, or products of such sums, with at
        most 2(n + 16) roundings behind each. A root halves it; the returned value is larger.
        """
        terms = 2.0 * (self.visible + self.hidden + 17)
        return (2.0 * self.hidden + 3.0) * terms * 2.0**-53

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """``y`` [P], zeros and ones of any type."""
        return {"y": (self.visible,)}

    def sound(self, records: Arrays) -> np.ndarray:
        """Returns whether all units of a record are 0 or 1: bool [N]."""
        y = records["y"]
        return np.asarray(((y == 0) | (y == 1)).all(axis=1))

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns records with units that are on with a probability drawn for each record."""
        lit = random.random((count, 1))
        return {"y": (random.random((count, self.visible)) < lit).astype(np.float32)}

    def check(self, y: np.ndarray) -> None:
        """Raises DataError unless ``y`` is [N, P], of zeros and ones."""
        if y.ndim != 2 or y.shape[1] != self.visible:
            raise errors.DataError(
                f"y has shape {y.shape}, expected (records, {self.visible})",
                "a row is a record, and a column a visible unit",
            )
        sound = self.sound({"y": y})
        if not sound.all():
            row = int(np.argmin(sound))
            wrong = y[row][(y[row] != 0) & (y[row] != 1)][0]
            raise errors.DataError(
                f"y[{row}] holds {wrong}, expected 0 or 1",
                "make pixels binary first, such as `image > 0`",
            )

    def messages(self, posterior: Eta) -> dict[str, np.ndarray]:
        """Returns the inputs of the E step of ``sbn_hidden``: E[w], E[w²] and E[b]."""
        mean, second = self._moments(posterior[0])
        found = {"mean": mean.T, "hidden": posterior[1].h / posterior[1].J, "square": second.T}
        return {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns E[z] [B, K], E[ω] [B, P] and the factor of ẑ in h, r [B, P].

        They are NaN, so that the record does not count, if a unit is neither 0 nor 1.
        """
        import jax.numpy as jnp

        from fedvi.models import sbn_hidden

        y = jnp.asarray(records["y"]).astype(jnp.float32)
        sound = ((y == 0.0) | (y == 1.0)).all(axis=1)
        centred = jnp.where(sound[:, None], y - 0.5, jnp.nan)
        z, bend, slope = sbn_hidden.by_diagonal(messages, centred, self.sweeps)
        return {"z": z, "bend": bend, "slope": slope}

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns squared norms of outer products: products of squared norms, [B] each."""
        import jax.numpy as jnp

        z, bend, slope = local["z"], (local["bend"] ** 2).sum(axis=1), local["slope"]
        wide = (z**2).sum(axis=1) + 1.0
        return {
            "h": (slope**2).sum(axis=1) * wide,
            "b": ((z - 0.5) ** 2).sum(axis=1),
            "count": jnp.ones_like(wide),
            "J": bend * wide,
            "V": bend * ((z * (1.0 - z)) ** 2).sum(axis=1),
        }

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns Σ w·array of each block, in its shape."""
        from fedvi.models import sbn_hidden

        z, bend, slope = local["z"], local["bend"], local["slope"]
        wide, share = sbn_hidden.with_one(z), weights[:, None]
        return {
            "h": slope.T @ (share * wide),
            "b": (share * (z - 0.5)).sum(axis=0),
            "count": weights.sum()[None],
            "J": bend.T @ (share * wide),
            "V": bend.T @ (share * (z * (1.0 - z))),
        }

    def factor(self, sums: Arrays, posterior: Eta) -> tuple[GaussianEta, GaussianEta]:
        """Returns the terms of (h, J) of weights and biases, from sums and the q that they were made at."""
        weights, biases = posterior
        mean = (weights.h / weights.J).reshape(sums["h"].shape)
        kept = sums["J"].copy()
        kept[:, :-1] -= sums["V"]
        bend = _tilted_mean(np.sqrt((biases.h / biases.J) ** 2 + 1.0 / biases.J))
        moved = _eta(sums["h"] + mean * kept, sums["J"])
        return moved, GaussianEta(sums["b"], sums["count"] * bend)

    def first(self, sums: Arrays, posterior: Eta) -> tuple[GaussianEta, GaussianEta]:
        """Returns the factor of equally many records that agree with ``start``, to damp the first step.

        It assumes E[ω] = ¼ and units that are on half of the time.
        """
        count = float(sums["count"][0])
        start, _ = self.start
        shape = (self.visible, self.hidden + 1)
        typical = np.full(shape, count / 8.0)
        typical[:, -1] = count / 4.0
        mean = self._moments(start)[0]
        quiet = np.full(self.hidden, count / 4.0)
        return _eta(typical * mean, typical), GaussianEta(np.zeros(self.hidden), quiet)

    def posterior(self, total: Eta, noise: Mapping[str, float]) -> tuple[GaussianEta, GaussianEta]:
        """Returns prior + total, with J made positive, prior precisions learnt, and means clipped.

        Learnt precisions and q(W) are updated in turns, from the declared prior on. Precisions stay within
        public bounds. The result is a function of ``total`` alone.

        Source: docs/proofs/updates.md §8.
        """
        weights, biases = total
        shape = (self.visible, self.hidden + 1)
        h, sd = weights.h.reshape(shape), noise.get("J", 0.0)
        curvature = np.maximum(weights.J.reshape(shape), self.ridge * sd)
        precisions = self._shrunk(h, curvature) if self.shrinkage else self._precisions
        found = self._boxed(_eta(h, curvature + precisions))
        least = self.ridge * noise.get("count", 0.0) / 4.0
        sharp = np.maximum(biases.J, least) + self.bias_scale**-2.0
        hidden = np.clip(biases.h / sharp, -self.largest, self.largest)
        return found, GaussianEta(sharp * hidden, sharp)

    def reconstructed(self, posterior: Eta, y: np.ndarray, together: int = 4096) -> np.ndarray:
        """Returns the probability of each visible unit given the hidden ones inferred from y: [N, P].

        The E step infers hidden units from all visible ones; E[z], E[W] and E[c] then predict the visible
        units: the papers' pixel-wise prediction. It measures how much of a record K hidden units keep. The
        baseline is the best constant prediction of each unit.

        Args:
          posterior: q.
          y: [N, P], zeros and ones.
          together: how many records are in memory at a time.

        Raises:
          DataError: ``y`` is not [N, P] with zeros and ones.
        """
        import jax

        self.check(y)
        messages = self.messages(posterior)
        step = jax.jit(self.expected)
        mean = self._moments(posterior[0])[0]
        parts = []
        for start in range(0, len(y), together):
            part = y[start : start + together]
            filled = np.pad(part, ((0, together - len(part)), (0, 0))) if start else part
            z = np.asarray(step(messages, {"y": filled})["z"], np.float64)[: len(part)]
            parts.append(scipy.special.expit(z @ mean[:, :-1].T + mean[:, -1]))
        return np.concatenate(parts)

    @property
    def _precisions(self) -> np.ndarray:
        """Declared prior precisions, [P, K + 1]."""
        found = np.full((self.visible, self.hidden + 1), self.weight_scale**-2.0)
        found[:, -1] = self.bias_scale**-2.0
        return found

    def _moments(self, weights: GaussianEta) -> tuple[np.ndarray, np.ndarray]:
        """Returns the means and second moments of (w, c), [P, K + 1] each."""
        shape = (self.visible, self.hidden + 1)
        mean = (weights.h / weights.J).reshape(shape)
        return mean, mean**2 + 1.0 / weights.J.reshape(shape)

    def _boxed(self, weights: GaussianEta) -> GaussianEta:
        """Returns η with means clipped to ±``largest``, and the same J."""
        mean = self._moments(weights)[0]
        if (np.abs(mean) <= self.largest).all():
            return weights
        kept = np.clip(mean, -self.largest, self.largest)
        return GaussianEta(weights.J * kept.reshape(-1), weights.J)

    def _shrunk(self, h: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        """Returns prior precisions [P, K + 1], with E[1/ζ] under the shrinkage prior for W.

        q(ζ) is generalised inverse Gaussian of order 0, whose moments are ratios of Bessel functions.
        """
        precisions, rows = self._precisions, self.visible
        declared = self.weight_scale**-2.0
        rate, top = np.full((rows, self.hidden), 0.5), 1.0
        of_units = np.ones(self.hidden)
        for _ in range(_ITERATIONS):
            second = self._moments(_eta(h, curvature + precisions))[1]
            inverse, scale = generalised_inverse(2.0 * rate, second[:, :-1] * declared)
            rate = 1.0 / (scale + of_units)
            of_units = (0.5 * rows + 0.5) / (top + rate.sum(axis=0))
            top = (0.5 * self.hidden + 0.5) / (1.0 + of_units.sum())
            precisions[:, :-1] = declared * np.clip(inverse, _SMALLEST, _LARGEST)
        return precisions

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Returns "weights", "visible_biases" and "hidden_biases"."""
        rows, biases = self.family.split(theta)
        rows = rows.reshape(-1, self.visible, self.hidden + 1)
        visible, hidden = ("visible", numbered(self.visible)), ("hidden", numbered(self.hidden))
        return {
            "weights": Parameter(rows[..., :-1], (visible, hidden)),
            "visible_biases": Parameter(rows[..., -1], (visible,)),
            "hidden_biases": Parameter(biases, (hidden,)),
        }

    def draw(self, at: Arrays, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws hidden units, then visible ones."""
        lit = scipy.special.expit(at["hidden_biases"])
        hidden = random.uniform(size=(count, self.hidden)) < lit
        chance = scipy.special.expit(hidden @ at["weights"].T + at["visible_biases"])
        return {"y": (random.uniform(size=chance.shape) < chance).astype(np.int64)}

    def measure(self, posterior: Eta, records: Arrays, draws: int, seed: int) -> Measure:
        """Returns the share of units that are reconstructed, and a lower bound on the log-likelihood.

        Source: Gan et al. (2015), AISTATS, and Park et al. (2020), JAIR 68, for the pixel-wise prediction.
        """
        y = records["y"]
        chance = self.reconstructed(posterior, y)
        right = float(((chance > 0.5) == (y > 0.5)).mean())
        lit = (y > 0.5).mean(axis=0)
        constant = float(np.maximum(lit, 1.0 - lit).mean())
        theta = thetas(self.family, posterior, draws, seed)
        # Another stream than that of θ, which has the same seed.
        least = log_bound(self, posterior, y, theta, np.random.default_rng((seed, 1))).mean()
        return Measure(
            _RECONSTRUCTED, right, draws, ((_CONSTANT, constant), (_AT_LEAST, float(least)))
        )


def _eta(h: np.ndarray, precision: np.ndarray) -> GaussianEta:
    """Returns η of the weights from h and J [P, K + 1]."""
    return GaussianEta(h.reshape(-1), precision.reshape(-1))


def generalised_inverse(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns E[1/ζ] and E[ζ] of GIG(p = 0, a, b), density ∝ ζ⁻¹ exp(−(aζ + b/ζ)/2); a, b > 0.

    Source: Jørgensen (1982), Statistical properties of the generalized inverse Gaussian distribution.
    """
    root = np.sqrt(a * b)
    ratio = scipy.special.k1e(root) / scipy.special.k0e(root)
    return np.sqrt(a / b) * ratio, np.sqrt(b / a) * ratio


def _tilted_mean(tilt: np.ndarray) -> np.ndarray:
    """Returns tanh(c/2)/(2c) for c > 0, which holds because q(b) has a variance."""
    return np.asarray(np.tanh(0.5 * tilt) / (2.0 * tilt))


def log_bound(
    model: SigmoidBeliefNetwork,
    posterior: Eta,
    y: np.ndarray,
    theta: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """Returns estimates [n] of log ∫ p(y | θ) q(θ) dθ that are lower bounds in expectation.

    Each is the log of the mean over draws of p(y, z | θ) / r(z), θ ~ q and z ~ r, where r is the E step's
    distribution of the hidden units given y. The mean is unbiased, so its log is too low on average.

    Source: Burda, Grosse and Salakhutdinov (2016), arXiv:1509.00519, equation 8.
    """
    import jax

    parameters, messages = model.parameters(theta), model.messages(posterior)
    expected = jax.jit(model.expected)
    together = max(1, _AT_ONCE // model.visible)
    found = []
    for start in range(0, len(y), together):
        part = y[start : start + together]
        # Float32 may round a probability to 1; then every draw is 1, and its log chance is finite.
        lit = np.asarray(expected(messages, {"y": part})["z"], np.float64)
        total = np.full(len(part), -np.inf)
        for index in range(len(theta)):
            at = at_draw(parameters, index)
            z = (random.uniform(size=lit.shape) < lit).astype(np.float64)
            ratio = _bernoulli(at["hidden_biases"], z) - _log_chance(lit, z)
            along = z @ at["weights"].T + at["visible_biases"]
            total = np.logaddexp(total, ratio + _bernoulli(along, part))
        found.append(total - math.log(len(theta)))
    return np.concatenate(found)


def _bernoulli(logits: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Returns Σ log p(unit) over the last axis, for units 0 or 1 with log odds ``logits`` of 1."""
    return np.asarray(-np.logaddexp(0.0, np.where(units > 0.5, -logits, logits)).sum(axis=-1))


def _log_chance(lit: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Returns the same for units drawn with the probabilities ``lit`` of 1."""
    return np.asarray(np.log(np.where(units > 0.5, lit, 1.0 - lit)).sum(axis=-1))
