"""Public coordinates of a regression's columns, and the surveys from which they are learnt.

NumPy only, since servers use it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import scipy

from fedvi.expfam.gaussian import GaussianEta
from fedvi.typing import INTERCEPT
from fedvi.updates.running_means import OVER_STEPS

if TYPE_CHECKING:
    from fedvi.updates.base import Fold, Standing

__all__ = [
    "EMPHASIS",
    "ENOUGH_FOR_SIZES",
    "MOST_COUNT_NOISE",
    "Coordinates",
    "Foreseen",
    "Outcome",
    "OutcomeSurvey",
    "Survey",
    "asked_for",
    "fold_inward",
    "length_for",
    "no_coordinates",
    "of_sizes",
    "of_survey",
    "planned_survey",
    "root_mean_square",
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
# Weights of counts, of which few are near the longest slope, leave long rows: those say more of curvatures.
_LONGER = 2.0
# Sizes of slopes of counts are in thirds of the longest that weights expect.
_THIRDS = 3.0
# A prior for half the width of bounds is one for at most this many sds of the column.
_WITHIN = 2.0
# The precision of an intercept's prior up to which it is moved to where outcomes are.
_NARROW = 1.0
# A spread that noise hides counts as this many sds of the noise in its sum: the prior is then seldom too
# narrow, and no wider than helps predictions.
_AT_LEAST = 0.25
# Weights expect this many times the mean exposure.
_EXPOSED = 1.5
ENOUGH_FOR_SIZES = 8
"""With fewer rounds, sizes of slopes, which take up to two, would cost too much."""

MOST_COUNT_NOISE = 0.06
"""The most noise in a count of records of one size, as a share of all declared records."""

EMPHASIS = 2.0
"""The factor of an outcome in a survey: its mean must be precise, since sizes of slopes are around it."""
# A level that so few records have is to be biased little, too.
_SELDOM_ONES = 0.05
# The most sizes of slopes that are told apart.
_MOST_SIZES = 14
# The largest ratio of neighbouring borders between sizes.
_WIDEST_SIZE = 2.2
# A count that is more of its noise's sds is not noise alone.
_SEEN = 3.0


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
      most: the declared upper bound of the outcome, as the model sees it; None if there is none.
      exposed: the largest offset; None without an offset whose exponential is an exposure.
      by_bounds: the coefficients whose unit is half the width of their column's bounds.
      several: the largest size of each of several outcomes, as the model sees them; () of any other.
    """

    rounds: int = 1
    clients: int = 1
    records: int = 1
    typical_norm: float | None = None
    curvature: float | None = None
    vanishing: tuple[tuple[int, int, int], ...] = ()
    most: float | None = None
    exposed: float | None = None
    by_bounds: tuple[int, ...] = ()
    several: tuple[float, ...] = ()


class Outcome(NamedTuple):
    """What a model says of the outcomes that a survey may learn of.

    Attributes:
      kind: "number", "count" or "event", see ``OutcomeSurvey``.
      dispersion: of counts.
      learnt: whether the noise around a number is to be learnt.
    """

    kind: str
    dispersion: float = 0.0
    learnt: bool = False


class OutcomeSurvey(TypedDict):
    """Describes what a survey learns of outcomes; JSON can represent it.

    The survey of columns also has the sum of outcomes as numbers in [0, 1], × 2, in place of the constant
    column's squares, and that of exposures. An exposure is beside the diagonal, in row 1, and is added to
    the two squares beside it: so every record's matrix is positive, and servers may refuse others.

    Another answer counts records by the size of their slope ∂ log p / ∂a: a record is 1 in one of
    K = min(14, 2D) counts, which are in the gradient and on the curvature's diagonal. Of numbers, whose
    noise is to be learnt, it is the second answer, and once more the last but one. Of counts it comes
    after two steps, since rates that differ would look like counts that scatter.

    Attributes:
      kind: "number" for (y / most + 1) / 2, and sizes of y − a; "count" for log(1 + y) / log(1 + most), and
        sizes of the slope in thirds of the one that weights expect, which are about its sds; "event" for 0
        or 1, and time at risk ÷ follow-up as the exposure: sizes are not counted.
      most: the largest |y|.
      exposed: the largest offset, for which exp(offset − exposed) is an exposure in (0, 1]; None: there is
        none.
      dispersion: of counts: their variance is mean + dispersion · mean².
      sizes: the K − 1 borders between sizes, increasing.
      after: after how many folds of steps sizes are counted, of numbers a second time.
    """

    kind: str
    most: float
    exposed: float | None
    dispersion: float
    sizes: list[float]
    after: int


class Survey(TypedDict):
    """Describes a survey: a client's first answer, on columns and perhaps outcomes; JSON can represent it.

    A record contributes (x, x²) / unit, with the constant column × emphasis, clipped to norm 1: 2D
    numbers, with the same noise as later answers.

    Attributes:
      constant: the index of the column that is 1, in each block of coefficients.
      blocks: of the coefficients of each outcome or level, on the same columns, how large slopes are less
        than those of others: their columns become longer by it. [1.0] for a single block.
      several: the largest |y| of each of several outcomes; the second block's first entries hold the sums
        of (y / most + 1) / 2, × 2. [] where there are no such.
      baselines: how many columns from ``constant`` on add up to the constant 1: 1; or the intervals of a
        hazard, of which records hold none, so that the survey has the constant in the first one's place.
      unit: as above. For a row of the expected length, the contribution's norm is about 1/√2.
      emphasis: as above. It makes the count of records, on which centres and scales depend, more precise.
      length: the root mean square of ‖x̃‖ that coordinates aim for if there are as many records as declared.
      noise: the variance of the noise that means over all rounds leave in one number of all clients' sum.
      curvature: what a typical record adds to the precision of the coefficient of a column of variance 1.
      outcome: what is learnt of outcomes; None for nothing.
      by_bounds: see ``Foreseen``; plans of earlier versions have none.
    """

    constant: int
    unit: float
    emphasis: float
    length: float
    noise: float
    curvature: float
    outcome: OutcomeSurvey | None
    by_bounds: list[int]
    blocks: list[float]
    several: list[float]
    baselines: int


def planned_survey(
    names: Sequence[str],
    foreseen: Foreseen,
    noise_multiplier: float,
    rate: float,
    curvature: float,
    outcome: Outcome | None = None,
    blocks: Sequence[float] = (1.0,),
    baselines: int = 0,
) -> Survey | None:
    """Returns the survey with which a regression's study begins; None if it would not pay.

    It takes one of T rounds, and so 1/T of the budget's μ². There is none without a constant, which
    centring needs; without noise; with fewer than 5 rounds; or if the noise of one of its sums exceeds half
    of the declared number of records.

    Args:
      names: of the coefficients.
      foreseen: public facts of the study.
      noise_multiplier: of an answer.
      rate: the share of records that an answer is computed from.
      curvature: see ``Survey``.
      outcome: what may be learnt of outcomes; None for nothing.
      blocks: see ``Survey``.
      baselines: how many log hazards come first; 0 of a model with an intercept.
    """
    # Names of several blocks are "outcome: column".
    columns = [f": {name}" for name in names[: len(names) // len(blocks)]]
    is_constant = [name.endswith(f": {INTERCEPT}") for name in columns]
    if baselines:
        is_constant = [index == 0 for index in range(len(columns))]
    if True not in is_constant or foreseen.rounds < _ENOUGH_ROUNDS or noise_multiplier == 0.0:
        return None
    norm, emphasis = typical_norm(columns, foreseen), len(columns) ** 0.25
    constant = is_constant.index(True)
    noise = noise_multiplier * math.sqrt(foreseen.clients) / rate
    records = foreseen.clients * foreseen.records
    plan = None
    if outcome is not None and (outcome.kind == "event" or noise <= MOST_COUNT_NOISE * records):
        plan = _planned_outcome(outcome, len(names), foreseen)
    # In the entries of the second block.
    several = list(foreseen.several) if 1 < len(foreseen.several) <= len(columns) else []
    # An outcome is about ½, and so is an exposure, in four entries.
    more = (len(several) + (plan is not None)) * (EMPHASIS / 2.0) ** 2
    more += 1.0 if plan is not None and plan["exposed"] is not None else 0.0
    unit = math.sqrt(2.0 * (norm**2 + emphasis**2 - 1.0) + more)
    if noise * unit > _MOST_NOISE * records:
        return None
    return Survey(
        constant=constant,
        unit=unit,
        emphasis=emphasis,
        length=length_for(len(names), foreseen, noise_multiplier, rate, curvature),
        noise=_noise_left(foreseen, noise_multiplier, rate),
        curvature=curvature,
        outcome=plan,
        by_bounds=list(foreseen.by_bounds),
        blocks=list(blocks),
        several=several,
        baselines=max(1, baselines),
    )


def _planned_outcome(outcome: Outcome, size: int, foreseen: Foreseen) -> OutcomeSurvey | None:
    """Returns what a survey learns of outcomes; None if bounds, rounds or coefficients do not suffice."""
    if outcome.kind == "event":
        return (
            OutcomeSurvey(
                kind="event", most=1.0, exposed=0.0, dispersion=0.0, sizes=[], after=foreseen.rounds
            )
            if size > 1
            else None
        )
    if foreseen.most is None or foreseen.rounds < ENOUGH_FOR_SIZES or size < 2:
        return None
    # Residuals are compared with the bounds of the outcome; slopes of counts with the model's own sd.
    largest, ratio = (2.0 * foreseen.most, 1000.0) if outcome.kind == "number" else (10.0, 100.0)
    count = min(_MOST_SIZES, 2 * size)
    # Few coefficients leave few sizes: a wide one would say little of an sd within it.
    ratio = min(ratio, _WIDEST_SIZE ** (count - 1))
    return OutcomeSurvey(
        kind=outcome.kind,
        most=foreseen.most,
        exposed=foreseen.exposed,
        dispersion=outcome.dispersion,
        sizes=[largest * ratio ** (-k / (count - 1)) for k in range(count - 1, 0, -1)],
        after=foreseen.rounds - 4 if outcome.kind == "number" else 2,
    )


def asked_for(survey: Survey | None, at: "Coordinates | None") -> str:
    """Returns what a task asks for: "columns" for a survey of them, "sizes" of slopes, or a "step"."""
    if survey is None or at is None:
        return "step" if survey is None else "columns"
    return "sizes" if at.sizes else "step"


def root_mean_square(plan: OutcomeSurvey, counts: np.ndarray, noise: float) -> float | None:
    """Returns the root mean square of slopes from noisy counts by size; None if noise hides them.

    Its square is an estimate and one sd of the noise in it. Sizes far above the last that noise does not
    hide count as absent. Within a size, the mean square is that of a normal distribution with the root mean
    square that results, found by iteration.

    Args:
      plan: its ``sizes`` define the counts.
      counts: [K], each with noise.
      noise: the sd of the noise in one count.
    """
    borders = np.array(plan["sizes"])
    seen = np.flatnonzero(counts > _SEEN * noise)
    if not len(seen):
        return None
    kept = np.array(counts[: len(borders) + 1])
    # One more, since the few largest residuals are spread over several sizes.
    kept[seen[-1] + 2 :] = 0.0
    lower, upper = np.append(0.0, borders), np.append(borders, borders[-1] ** 2 / borders[-2])
    if kept.sum() <= _SEEN * noise:
        return None
    share = np.maximum(kept, 0.0) / np.maximum(kept, 0.0).sum()
    found = math.sqrt(float(share @ upper**2))
    # Counts below 0 are noise, and must not make it vanish.
    least = max(0.1 * float(share @ (lower * upper)), (borders[0] / 3.0) ** 2)
    for _ in range(50):
        within = found**2 * _mean_square(lower / found, upper / found)
        found = math.sqrt(max(float(kept @ within) / float(kept.sum()), least))
    # One sd of what noise makes of it: an sd that is too small would be worse than one too large.
    doubt = noise * float(np.linalg.norm(within[: seen[-1] + 2])) / float(kept.sum())
    return math.sqrt(found**2 + doubt)


def _seldom_longer(plan: OutcomeSurvey, counts: np.ndarray, noise: float) -> float:
    """Returns by how much weights must expect longer slopes, at least 1: clipping then biases little.

    Clipping shortens only long slopes, which are mostly those of large counts. What it takes from the sum
    of slopes is to be below half of that sum's sd, by the counts that noise does not hide.
    """
    usual = _usual(plan)
    borders, kept = np.array(plan["sizes"]), np.where(counts > 2.0 * noise, counts, 0.0)
    limit = 0.5 * math.sqrt(float(kept @ usual**2)) + noise
    for border in [_THIRDS, *borders[borders > _THIRDS]]:
        if float(kept @ np.maximum(usual - border, 0.0)) <= limit:
            return float(border) / _THIRDS
    return float(borders[-1]) / _THIRDS


def _usual(plan: OutcomeSurvey) -> np.ndarray:
    """Returns the middle of each size, [K]."""
    borders = np.array(plan["sizes"])
    lower = np.append(borders[0] ** 2 / borders[1], borders)
    return np.asarray(np.sqrt(lower * np.append(borders, 2 * borders[-1])))


def _shorter(
    survey: Survey,
    plan: OutcomeSurvey,
    counts: np.ndarray,
    noise: float,
    spread: float,
    at: "Coordinates",
) -> float:
    """Returns by how much rows must be shorter, at least 1, so that clipping long residuals biases little.

    With rows as long as ``of_survey`` makes them, residuals of more than ``_THIRDS`` sds are clipped in
    long rows, and those of more than √10 / length in usual ones. What this takes from the sum of residuals
    is to be below half of that sum's sd, sampling and noise, among all records and among a share of
    ``_SELDOM_ONES`` of them, such as a rare level. As many long residuals as a normal distribution has on
    either side do not count, since they cancel. Rows do not become so short that noise hides curvatures.

    Args:
      survey, plan: its description.
      counts, noise: see ``root_mean_square``.
      spread: the sd of residuals.
      at: coordinates before, in which rows have the length for the expected sd.
    """
    long, usual, sd = _long(plan, counts, noise, spread)
    size, count = len(at.scale), max(float(counts.sum()), noise, 1.0)
    expected = survey["curvature"] ** -0.5
    length = _length(size, survey["noise"], count, survey["curvature"])
    # Of a gradient's noise, in residuals ÷ spread.
    noised = survey["noise"] * (expected / at.scale[at.constant]) ** 2
    most = max(1.0, length / _visible(size, survey["noise"], count, survey["curvature"]))
    shorter = 1.0
    while shorter < most:
        reaches = ((1.0, max(_THIRDS, expected / length)), (_SELDOM_ONES, _THIRDS))
        if all(
            share * float(long @ np.maximum(usual - reach * shorter, 0.0))
            <= 0.5 * math.sqrt(share * sd**2 + noised * shorter**2)
            for share, reach in reaches
        ):
            break
        shorter *= 1.1
    return min(shorter, most)


def _long(
    plan: OutcomeSurvey, counts: np.ndarray, noise: float, spread: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns how many records of each size a normal distribution does not explain, [K]; the sizes ÷
    spread, [K]; and the sd of their sum.
    """
    usual = _usual(plan) / spread
    kept = np.where(counts > _SEEN * noise, counts, 0.0)
    borders = np.append(0.0, np.array(plan["sizes"]) / spread)
    normal = 2.0 * np.diff(scipy.special.ndtr(borders), append=1.0)
    long = np.maximum(kept - kept.sum() * normal, 0.0)
    return long, usual, math.sqrt(float(kept @ usual**2))


def _taken(plan: OutcomeSurvey, counts: np.ndarray, noise: float, at: "Coordinates") -> float:
    """Returns what clipping takes from a mean of residuals, in rows of usual length.

    Args:
      plan, counts, noise: see ``root_mean_square``.
      at: coordinates of rows whose root mean square is √D × the constant's scale.
    """
    long, usual, _ = _long(plan, counts, noise, at.spread)
    length = at.scale[at.constant] * math.sqrt(len(at.scale))
    reach = max(_THIRDS, at.spread / length)
    lost = float(long @ np.maximum(usual - reach, 0.0))
    return at.spread * lost / max(float(counts.sum()), noise, 1.0)


def _mean_square(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Returns E[z² | lower < |z| ≤ upper] of a standard normal z, elementwise."""
    ndtr = scipy.special.ndtr
    lower, upper = np.minimum(lower, 8.0), np.minimum(upper, 9.0)
    inside = ndtr(-lower) - ndtr(-upper)
    edge = [a * np.exp(-0.5 * a**2) / math.sqrt(2.0 * math.pi) for a in (lower, upper)]
    within = 1.0 + (edge[0] - edge[1]) / np.maximum(inside, 1e-300)
    return np.clip(within, lower**2, upper**2)


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
    unit = math.sqrt(_TYPICAL_CURVATURE / curvature)
    return min(max(balanced * unit, _visible(size, noise, records, curvature)), _LONGEST * unit)


def _visible(size: int, noise: float, records: float, curvature: float) -> float:
    """Returns the length of rows below which noise hides curvatures."""
    told = records * _TYPICAL_CURVATURE / size
    # Noise in a symmetric matrix has eigenvalues of up to its sd × √(2D).
    seen = math.sqrt(math.sqrt(2.0 * size * noise) / (_CURVATURE_WEIGHT * told * _HIDDEN))
    return seen * math.sqrt(_TYPICAL_CURVATURE / curvature)


class Coordinates(NamedTuple):
    """The columns x̃_j = scale_j · (x_j − centre_j · x_c), and the coefficients z with xᵀθ = x̃ᵀz.

    Since x_c is 1, centring a column shifts a part of its coefficient to the intercept.

    Attributes:
      centre: [D], float64; 0 for the constant column c.
      scale: [D], float64, above 0.
      constant: c, in the first of ``blocks`` equal blocks of coefficients; each has its own at this place.
      spread: how large slopes ∂ log p / ∂a are, in units of what the model expects; for a number with
        unknown noise, the noise's sd that steps assume. 0: not known yet.
      level: the offset at which weights before clipping expect every record.
      residual: the sd of residuals, from the second count of them; 0: not known.
      sizes: whether sizes of slopes are asked for.
      blocks: 1; or of how many outcomes or levels there are coefficients on the same columns.
      baselines: how many columns from c on add up to x_c, see ``Survey``; 1 if there are several blocks.
    """

    centre: np.ndarray
    scale: np.ndarray
    constant: int
    spread: float = 0.0
    level: float = 0.0
    residual: float = 0.0
    sizes: bool = False
    blocks: int = 1
    baselines: int = 1

    @property
    def constants(self) -> np.ndarray:
        """The constant columns: one of each block, or those that add up to one."""
        size = len(self.scale) // self.blocks
        first = self.constant + np.arange(self.baselines)
        return np.add.outer(np.arange(self.blocks) * size, first).ravel()

    def _constant_of(self, like: np.ndarray) -> np.ndarray:
        """Returns for each coordinate the entry of its block's constant, [D, …]."""
        if self.baselines > 1:
            return np.broadcast_to(like[self.constants].sum(axis=0), like.shape)
        return np.asarray(like[np.repeat(self.constants, len(self.scale) // self.blocks)])

    def columns(self, theta_like: np.ndarray) -> np.ndarray:
        """Returns A v for v [D, …], where x̃ = A x; converts gradients from θ to z."""
        scale, centre = (_beside(part, theta_like) for part in (self.scale, self.centre))
        return np.asarray(scale * (theta_like - centre * self._constant_of(theta_like)))

    def columns_back(self, z_like: np.ndarray) -> np.ndarray:
        """Returns A⁻¹ v for v [D, …]; converts gradients from z to θ."""
        found = z_like / _beside(self.scale, z_like)
        return np.asarray(found + _beside(self.centre, z_like) * self._constant_of(found))

    def coefficients(self, theta: np.ndarray) -> np.ndarray:
        """Returns z = A⁻ᵀ θ for θ [D]."""
        z = np.asarray(theta, np.float64).copy()
        z[self.constants] += self._centred(z)
        return z / self.scale

    def coefficients_back(self, z: np.ndarray) -> np.ndarray:
        """Returns θ = Aᵀ z for z [D]."""
        theta = np.asarray(z * self.scale)
        theta[self.constants] -= self._centred(theta)
        return theta

    def _centred(self, theta: np.ndarray) -> list[float]:
        """Returns Σ centre_j θ_j of each constant's block."""
        pairs = zip(*(np.split(part, self.blocks) for part in (self.centre, theta)), strict=True)
        return [centre @ part for centre, part in pairs for _ in range(self.baselines)]

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
    survey: Survey, sums: GaussianEta, noise: float, prior: GaussianEta
) -> tuple[Coordinates, GaussianEta, np.ndarray]:
    """Makes coordinates in which columns that exceed the noise have equal weight, a prior and intercepts.

    With N = Σ x_c, a column has the mean μ_j = Σ x_j / N and the sum of squares s_j = Σ x_j² − N μ_j².
    Its scale is √(N / (max(s_j, u) + p_j)), times a constant that gives rows the length of ``length_for``
    with N records. The sd u of the noise in a sum is a floor for columns that cannot be distinguished from
    zero, and p_j expresses the prior as a number of records. Each block's intercept is that of centred
    columns where outcomes are as the survey says; 0 if it says nothing of them.

    The prior is the given one where bounds say how columns are spread. Where they are much too wide, the
    prior of a coefficient per half-width of them would hold back effects that are real: it is then that of
    ``_WITHIN`` sds of the column. The intercept's, if its sd is 1 or more, is around the survey's and as
    much wider as that is uncertain; it is at the means of the columns whose unit is their bounds'.

    Args:
      survey: its description.
      sums: (Σ x_j, diag of Σ x_j²), with noise, the constant column's × emphasis: [D] and [D, D]; with an
        ``OutcomeSurvey`` as that says.
      noise: u.
      prior: a Gaussian.
    """
    constant, plan, factors = survey["constant"], survey["outcome"], survey.get("blocks", [1.0])
    # Records have the columns once; the sums of other blocks are noise alone.
    size = len(sums.h) // len(factors)
    means, squares = sums.h[:size], np.diagonal(sums.J)[:size].copy()
    if plan is None:
        counted = float(means[constant] + squares[constant]) / (2.0 * survey["emphasis"])
    else:
        counted = float(means[constant]) / survey["emphasis"]
    count = max(counted, noise, 1.0)
    curvature, level, start, doubt, unsure = survey["curvature"], 0.0, 0.0, 0.0, 0.0
    asks = plan is not None and plan["kind"] == "number"
    # Surveys of earlier plans are of a single outcome.
    several = np.array(survey.get("several", []))
    shares = sums.h[size : size + len(several)] / EMPHASIS / count
    starts = several * np.clip(2.0 * shares - 1.0, -1.0, 1.0)
    # Of the noise in a start.
    sds = 2.0 * several * noise / EMPHASIS / count
    if plan is not None:
        exposed = 0.0
        if plan["exposed"] is not None:
            exposures = float(sums.J[1, 0])
            squares[:2] -= exposures
            mean = min(1.0, max(exposures, noise) / count)
            exposed, unsure = plan["exposed"] + math.log(mean), noise / count / mean
            level = plan["exposed"] + min(0.0, math.log(_EXPOSED * mean))
        outcomes = float(squares[constant]) / EMPHASIS
        share = max(outcomes, 0.0 if plan["kind"] == "number" else noise / EMPHASIS) / count
        doubt = noise / EMPHASIS / count
        if plan["kind"] == "number":
            start = plan["most"] * min(max(2.0 * share - 1.0, -1.0), 1.0)
            doubt *= 2.0 * plan["most"]
        elif plan["kind"] == "event":
            # What a subject tells of a log hazard is its probability of an event.
            curvature = min(share, 1.0)
            start, doubt = math.log(curvature) - exposed, doubt / curvature
        else:
            # As for equal counts: a mean of logarithms, which no single large count decides.
            usual = math.expm1(math.log1p(plan["most"]) * min(share, 1.0))
            start = math.log(usual) - exposed
            doubt *= math.log1p(plan["most"]) * (1.0 + usual) / usual
            curvature = usual / (1.0 + plan["dispersion"] * usual) / _LONGER**2
    constants = slice(constant, constant + (baselines := survey.get("baselines", 1)))
    centre = means / count
    centre[constants] = 0.0
    squares = squares - count * centre**2
    # Records are in one interval or another, and say of each as much as its share.
    squares[constants] = count / baselines
    seen = np.maximum(squares, noise)
    spread = np.sqrt(np.maximum(squares, _AT_LEAST * noise) / count)
    if not len(several):
        starts, sds = (np.full(len(factors), each) for each in (start, math.hypot(doubt, unsure)))
    wide = _of_spread(prior, survey, centre, spread, starts, sds)
    centre, seen, squares = (np.tile(part, len(factors)) for part in (centre, seen, squares))
    larger = np.repeat(factors, size)
    pull = np.diagonal(wide.J) * larger**2 / curvature
    scale = np.sqrt(count / (seen + pull))
    whole = float((scale**2 * np.maximum(squares, 0.0)).sum()) / count
    length = _length(len(scale), survey["noise"], count, curvature)
    # At least 1, the approximate length of the constant column alone.
    scale = larger * scale * length / math.sqrt(max(whole, 1.0))
    at = _planned(survey, Coordinates(centre, scale, constant, level=level, sizes=asks))
    return at, wide, starts


def no_coordinates(size: int, survey: Survey | None) -> Coordinates:
    """Returns the coordinates that leave columns as they are, in the form of a survey's."""
    at = Coordinates(np.zeros(size), np.ones(size), 0)
    return at if survey is None else _planned(survey, at)


def _planned(survey: Survey, at: Coordinates) -> Coordinates:
    # Surveys of earlier plans are of models with one intercept.
    return at._replace(
        constant=survey["constant"],
        blocks=len(survey.get("blocks", [1.0])),
        baselines=survey.get("baselines", 1),
    )


def _of_spread(
    prior: GaussianEta,
    survey: Survey,
    mean: np.ndarray,
    sd: np.ndarray,
    starts: np.ndarray,
    sds: np.ndarray,
) -> GaussianEta:
    """Returns the prior in units of the columns' spread, see ``of_survey``.

    Args:
      prior, survey: as there.
      mean, sd: of each column of a block.
      starts, sds: the intercept of centred columns in each block, and the sd of the noise in it.
    """
    of, constant = survey.get("by_bounds", []), survey["constant"]
    narrower, moves, middle = np.ones(len(prior.h)), np.eye(len(prior.h)), np.zeros(len(prior.h))
    for block, (start, doubt) in enumerate(zip(starts, sds, strict=True)):
        first = block * len(mean)
        columns = np.array(of, int) + first
        narrower[columns] = np.minimum(1.0, _WITHIN * sd[of])
        for each in range(survey.get("baselines", 1)):
            own = first + constant + each
            moves[own, columns] = mean[of]
            # A prior that is narrow on purpose stays where the study states it.
            if prior.J[own, own] <= _NARROW:
                middle[own] = start
                narrower[own] = 1.0 / math.sqrt(1.0 + doubt**2 * prior.J[own, own])
    J = narrower[:, None] * prior.J * narrower
    h = narrower * prior.h + J @ middle
    J = moves.T @ J @ moves
    return GaussianEta(moves.T @ h, (J + J.T) / 2.0)


def of_sizes(
    survey: Survey, at: Coordinates, counts: np.ndarray, noise: float
) -> tuple[Coordinates, float]:
    """Makes coordinates for slopes of the sizes that were counted, and says what clipping takes from them.

    The first counts define how long rows are, since a slope times a row is to have a length of about 1; for
    a number with unknown noise, they also define the noise that steps assume. Later counts say only how
    large residuals are now, and what clipping takes from their mean, in the unit of the outcome.

    Args:
      survey: its description, with an ``OutcomeSurvey``.
      at: coordinates so far.
      counts: of all clients that answered, at least K numbers.
      noise: the sd of the noise in each.
    """
    plan = survey["outcome"]
    assert plan is not None
    at, counts = at._replace(sizes=False), counts[: len(plan["sizes"]) + 1]
    if plan["kind"] == "count":
        return at._replace(spread=_seldom_longer(plan, counts, noise)), 0.0
    found = root_mean_square(plan, counts, noise)
    if at.spread:
        # Steps assumed the spread of outcomes; what explains some of it leaves less.
        if found is None:
            return at, 0.0
        return at._replace(residual=min(found, at.spread)), _taken(plan, counts, noise, at)
    # A number's slope is its residual ÷ spread².
    expected = survey["curvature"] ** -0.5
    if found is None:
        return at._replace(spread=expected), 0.0
    shorter = _shorter(survey, plan, counts, noise, found, at)
    return at._replace(spread=found, scale=at.scale * found / expected / shorter), 0.0


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
