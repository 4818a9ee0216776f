"""Public coordinates of a regression's columns, and the survey from which they are learnt.

NumPy only, since servers use it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from fedvi.expfam.gaussian import GaussianEta
from fedvi.typing import INTERCEPT
from fedvi.updates.running_means import OVER_STEPS

if TYPE_CHECKING:
    from fedvi.updates.base import Fold, Standing

__all__ = [
    "Coordinates",
    "Foreseen",
    "Survey",
    "fold_inward",
    "length_for",
    "of_survey",
    "planned_survey",
    "standing_inward",
    "standing_outward",
    "typical_norm",
]

_TYPICAL_CURVATURE = 0.1
# The largest root mean square of rows for a clip norm of 1, if slopes have a mean square of 0.1.
_LONGEST = 1.5
# N·L⁴ over twice this is about how far a coefficient of N records of length L is off, squared, in variances
# without noise, as on Adult.
_ALIKE = 2e4
# The most that noise may have as an eigenvalue, in those of the curvature; beyond, it hides directions.
_HIDDEN = 0.15
# The factor of a curvature in an answer, by default.
_CURVATURE_WEIGHT = 2.0
# With fewer rounds, a survey would take more than a fifth of the budget.
_ENOUGH_ROUNDS = 5
# If the noise of one sum is a larger share of all declared records, a survey is too inaccurate.
_MOST_NOISE = 0.5


class Foreseen(NamedTuple):
    """Public facts of a study before any record is read.

    Attributes:
      rounds: how often each client answers.
      clients: how many clients answer in the first fold, which defines the coordinates.
      records: the largest number of records, or of units, that one of them declares.
      typical_norm: a guess of the root mean square of ‖x‖; None if nothing is known about the columns,
        which are then assumed to be standardised.
      curvature: see ``Survey``, by the outcome's declared mean; None if the model alone says it.
      vanishing: products of columns that are 0 in every record, see ``supported.vanishing_forms``.
    """

    rounds: int = 1
    clients: int = 1
    records: int = 1
    typical_norm: float | None = None
    curvature: float | None = None
    vanishing: tuple[tuple[int, int, int], ...] = ()


class Survey(TypedDict):
    """Describes a survey: a client's first answer, on its columns only; JSON can represent it.

    A record contributes (x, x²) / unit, with the constant column × emphasis, clipped to norm 1: 2D
    numbers, with the same noise as later answers.

    Attributes:
      constant: the index of the column that is 1.
      unit: as above. For a row of the expected length, the contribution's norm is about 1/√2.
      emphasis: as above. It makes the count of records, on which centres and scales depend, more precise.
      length: the root mean square of ‖x̃‖ that coordinates aim for if there are as many records as declared.
      noise: the variance of the noise that means over all rounds leave in one number of all clients' sum.
      curvature: what a typical record adds to the precision of the coefficient of a column of variance 1.
    """

    constant: int
    unit: float
    emphasis: float
    length: float
    noise: float
    curvature: float


def planned_survey(
    names: Sequence[str],
    foreseen: Foreseen,
    noise_multiplier: float,
    rate: float,
    curvature: float,
) -> Survey | None:
    """Returns the survey with which a regression's study begins; None if it would not pay.

    It takes one of T rounds, and so 1/T of the budget's μ². There is none without an intercept, which
    centring needs; without noise; with fewer than 5 rounds; or if the noise of one of its sums exceeds half
    of the declared number of records.

    Args:
      names: of the coefficients.
      foreseen: public facts of the study.
      noise_multiplier: of an answer.
      rate: the share of records that an answer is computed from.
      curvature: see ``Survey``.
    """
    if INTERCEPT not in names or foreseen.rounds < _ENOUGH_ROUNDS or noise_multiplier == 0.0:
        return None
    norm, emphasis = typical_norm(names, foreseen), len(names) ** 0.25
    unit = math.sqrt(2.0 * (norm**2 + emphasis**2 - 1.0))
    noise = noise_multiplier * unit * math.sqrt(foreseen.clients) / rate
    if noise > _MOST_NOISE * foreseen.clients * foreseen.records:
        return None
    return Survey(
        constant=list(names).index(INTERCEPT),
        unit=unit,
        emphasis=emphasis,
        length=length_for(len(names), foreseen, noise_multiplier, rate, curvature),
        noise=_noise_left(foreseen, noise_multiplier, rate),
        curvature=curvature,
    )


def typical_norm(names: Sequence[str], foreseen: Foreseen) -> float:
    """Returns a public guess of the root mean square of ‖x‖."""
    return math.sqrt(len(names)) if foreseen.typical_norm is None else foreseen.typical_norm


def length_for(
    size: int, foreseen: Foreseen, noise_multiplier: float, rate: float, curvature: float
) -> float:
    """Returns the root mean square of rows for a clip norm of 1: slopes are about √curvature.

    Noise asks for long rows. But the longer they are, the more records are weighed down or clipped, and
    where the model does not hold exactly, the answer is then another than that of all records: the more
    so, in standard deviations, the more records there are. The length balances what public numbers
    foresee of both, and keeps the noise in curvatures well below them.

    Args:
      size: the number of coefficients.
      foreseen: public facts of the study.
      noise_multiplier: of an answer.
      rate: the share of records that an answer is computed from.
      curvature: see ``Survey``.

    Source: docs/proofs/noise_aware.md, which has the measurements.
    """
    records = foreseen.clients * foreseen.records
    return _length(size, _noise_left(foreseen, noise_multiplier, rate), records, curvature)


def _noise_left(foreseen: Foreseen, noise_multiplier: float, rate: float) -> float:
    return OVER_STEPS * foreseen.clients * (noise_multiplier / rate) ** 2 / foreseen.rounds


def _length(size: int, noise: float, records: float, curvature: float) -> float:
    told = records * _TYPICAL_CURVATURE / size  # of a coefficient, by rows of length 1
    # The minimum of noise / (told · L²) + records · L⁴ / (2 · _ALIKE).
    balanced = (_ALIKE * noise / (told * records)) ** (1.0 / 6.0)
    # Noise in a symmetric matrix has eigenvalues of up to its sd × √(2D).
    seen = math.sqrt(math.sqrt(2.0 * size * noise) / (_CURVATURE_WEIGHT * told * _HIDDEN))
    length = min(max(balanced, seen), _LONGEST)
    return length * math.sqrt(_TYPICAL_CURVATURE / curvature)


class Coordinates(NamedTuple):
    """The columns x̃_j = scale_j · (x_j − centre_j · x_c), and the coefficients z with xᵀθ = x̃ᵀz.

    Since x_c is 1, centring a column shifts a part of its coefficient to the intercept.

    Attributes:
      centre: [D], float64; 0 for the constant column c.
      scale: [D], float64, above 0.
      constant: c.
    """

    centre: np.ndarray
    scale: np.ndarray
    constant: int

    def columns(self, theta_like: np.ndarray) -> np.ndarray:
        """Returns A v for v [D, …], where x̃ = A x; converts gradients from θ to z."""
        scale, centre = (_beside(part, theta_like) for part in (self.scale, self.centre))
        return np.asarray(scale * (theta_like - centre * theta_like[self.constant]))

    def columns_back(self, z_like: np.ndarray) -> np.ndarray:
        """Returns A⁻¹ v for v [D, …]; converts gradients from z to θ."""
        found = z_like / _beside(self.scale, z_like)
        return np.asarray(found + _beside(self.centre, z_like) * found[self.constant])

    def coefficients(self, theta: np.ndarray) -> np.ndarray:
        """Returns z = A⁻ᵀ θ for θ [D]."""
        z = np.asarray(theta, np.float64).copy()
        z[self.constant] += self.centre @ theta
        return z / self.scale

    def coefficients_back(self, z: np.ndarray) -> np.ndarray:
        """Returns θ = Aᵀ z for z [D]."""
        theta = np.asarray(z * self.scale)
        theta[self.constant] -= self.centre @ theta
        return theta

    def inward(self, eta: GaussianEta) -> GaussianEta:
        """Converts η from θ to z."""
        J = self.columns(self.columns(eta.J).T)
        return GaussianEta(self.columns(eta.h), (J + J.T) / 2.0)

    def outward(self, eta: GaussianEta) -> GaussianEta:
        """Converts η from z to θ."""
        J = self.columns_back(self.columns_back(eta.J).T)
        return GaussianEta(self.columns_back(eta.h), (J + J.T) / 2.0)

    def all_outward(self, etas: GaussianEta) -> GaussianEta:
        """Does what ``outward`` does, for many η at once, [clients, D] and [clients, D, D], bit for bit."""
        J = self.columns_back(self.columns_back(np.moveaxis(etas.J, 1, 0)).T)
        J = np.ascontiguousarray(np.moveaxis(J, 1, 0))
        h = np.ascontiguousarray(self.columns_back(etas.h.T).T)
        return GaussianEta(h, (J + J.swapaxes(1, 2)) / 2.0)


def of_survey(
    survey: Survey, sums: GaussianEta, noise: float, precision: np.ndarray
) -> Coordinates:
    """Makes coordinates in which all columns that exceed the noise have equal weight.

    With N = Σ x_c, a column has the mean μ_j = Σ x_j / N and the sum of squares s_j = Σ x_j² − N μ_j².
    Its scale is √(N / (max(s_j, u) + p_j)), times a constant that gives rows the length of ``length_for``
    with N records. The sd u of the noise in a sum is a floor for columns that cannot be distinguished from
    zero, and p_j expresses the prior as a number of records.

    Args:
      survey: its description.
      sums: (Σ x_j, diag of Σ x_j²), with noise, the constant column's × emphasis: [D] and [D, D].
      noise: u.
      precision: of the prior, [D].
    """
    constant, pull = survey["constant"], precision / survey["curvature"]
    counted = float(sums.h[constant] + sums.J[constant, constant]) / (2.0 * survey["emphasis"])
    count = max(counted, noise, 1.0)
    centre = sums.h / count
    centre[constant] = 0.0
    squares = np.diagonal(sums.J) - count * centre**2
    squares[constant] = count
    seen = np.maximum(squares, noise)
    scale = np.sqrt(count / (seen + pull))
    whole = float((scale**2 * np.maximum(squares, 0.0)).sum()) / count
    length = _length(len(scale), survey["noise"], count, survey["curvature"])
    # At least 1, the approximate length of the constant column alone.
    return Coordinates(centre, scale * length / math.sqrt(max(whole, 1.0)), constant)


def fold_inward(at: Coordinates, fold: "Fold") -> "Fold":
    """Converts every η of a fold from θ to z."""
    # Tasks share posteriors, so a shared array is converted once and stays shared.
    once: dict[int, GaussianEta] = {}

    def of(eta: GaussianEta) -> GaussianEta:
        if id(eta) not in once:
            once[id(eta)] = at.inward(eta)
        return once[id(eta)]

    def of_all(etas: Mapping[str, Any]) -> dict[str, Any]:
        return {name: of(eta) for name, eta in etas.items()}

    return fold._replace(
        prior=of(fold.prior),
        known=of(fold.known),
        posterior=of(fold.posterior),
        factors=of_all(fold.factors),
        asked=of_all(fold.asked),
    )


def standing_inward(at: Coordinates, standing: "Standing") -> "Standing":
    """Converts every η and every θ of a standing to z."""
    return _moved(standing, at.inward, at.columns, at.coefficients)


def standing_outward(at: Coordinates, standing: "Standing") -> "Standing":
    """Converts every η and every place of a standing from z to θ."""
    return _moved(standing, at.outward, at.columns_back, at.coefficients_back)


def _moved(standing: "Standing", of: Any, gradient: Any, place: Any) -> "Standing":
    def of_gradient(pair: GaussianEta) -> GaussianEta:
        return GaussianEta(gradient(pair.h), place(pair.J))

    curvature = of(standing.curvature)
    return standing._replace(
        handed_out=of(standing.handed_out),
        reported=of(standing.reported),
        curvature=GaussianEta(place(standing.curvature.h), curvature.J),
        sites={name: of_gradient(site) for name, site in standing.sites.items()},
        gradient=None if standing.gradient is None else of_gradient(standing.gradient),
        reference=None if standing.reference is None else of(standing.reference),
        begun=None if standing.begun is None else of(standing.begun),
    )


def _beside(part: np.ndarray, array: np.ndarray) -> np.ndarray:
    return part.reshape(-1, *(1,) * (array.ndim - 1))
