"""Bounds answers by what the study declares: a site can answer with no more than its records allow.

An answer is a sum of clipped contributions and noise. Both have public bounds, so that an answer outside
is not what its solver computed. Whoever checks it learns nothing, since the answer was released.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam.matrices import from_triangle, triangle

__all__ = ["Limit", "Sign", "check", "limit_of"]

# Each bound on noise is its mean plus this many sds, and fails with a probability of 1.3e-14, exp(-8²/2).
# An answer meets some 20 of them at most: in a run of 4,000 answers, one fails with a probability of 1e-9.
_TAIL = 8.0
# For steps of the grid, of which a standard deviation has at least 4,096; and for float32 sums.
_ROUNDING = 1.001


class Sign(NamedTuple):
    """An array in which no contribution is negative.

    Attributes:
      name: of the array.
      side: 0 if all numbers of a contribution are at least 0. Else an array holds lower triangles of
        symmetric matrices [side, side], off-diagonal entries times √2, and contributions are positive
        semidefinite.
      total: the most that all numbers of a sum of contributions add up to; None if nothing bounds it.
    """

    name: str
    side: int = 0
    total: float | None = None


class Limit(NamedTuple):
    """How large one answer may be.

    Attributes:
      contributions: the largest L2 norm of the sum of contributions, of all its numbers.
      sd: of the noise in each number; 0 without noise.
      numbers: how many there are.
      each: the largest size of one number of that sum; None: as large as the norm.
      signs: arrays in which no contribution is negative.
    """

    contributions: float
    sd: float
    numbers: int
    each: float | None = None
    signs: tuple[Sign, ...] = ()

    def of_sum(self, answers: int = 1, louder: float = 1.0) -> float:
        """Returns the largest L2 norm of a sum of answers.

        Args:
          answers: how many there are at most.
          louder: the variance of its noise, in units of that of so many answers.
        """
        sd = self.sd * math.sqrt(answers * louder)
        return _longest(answers * self.contributions, sd, self.numbers)


def limit_of(
    summands: int,
    clip_norm: float,
    noise_multiplier: float,
    numbers: int,
    signs: tuple[Sign, ...] = (),
) -> Limit | None:
    """Returns the limit of a noised sum of clipped contributions; None if nothing is clipped.

    Args:
      summands: the most contributions, such as the records of a batch.
      clip_norm: C, the largest L2 norm of each.
      noise_multiplier: the noise's standard deviation ÷ C.
      numbers: how many numbers the sum has.
      signs: what is known of them besides.
    """
    if not math.isfinite(clip_norm):
        return None
    return Limit(summands * clip_norm, noise_multiplier * clip_norm, numbers, signs=signs)


def check(
    limit: Limit, value: Mapping[str, np.ndarray], what: str, answers: int = 1, louder: float = 1.0
) -> None:
    """Refuses an answer, or a sum of answers, that no declared records can give.

    With N(0, sd²) as noise in each of n numbers, and z = 8:

    - the norm of the noise is at most sd·(√n + z), since its mean is at most sd·√n;
    - its largest number is at most sd·√(z² + 2 ln n), by the union bound over n numbers;
    - the noise of a matrix from a triangle has no eigenvalue below −sd·(√(2D) + z), the edge of its
      spectrum (Slepian's inequality) and z sds; with K matrices, √(z² + 2 ln K) sds;
    - the total of n numbers is normal, with the sd sd·√n.

    Norm and eigenvalues are functions of n standard normal numbers with the Lipschitz constant sd. So by
    Gaussian concentration each bound fails with a probability of exp(−z²/2) at most.

    Args:
      value: its arrays, finite.
      what: names it in the message, which shows none of its numbers.
      answers, louder: see ``Limit.of_sum``.

    Raises:
      ImpossibleAnswer: it is outside of a bound.

    Source: Davidson and Szarek (2001), Local operator theory, random matrices and Banach spaces, theorem
    II.11 and the proof of II.13, for the edge; Boucheron, Lugosi and Massart (2013), theorem 5.6.
    """
    sd, whole = limit.sd * math.sqrt(answers * louder), answers * limit.contributions
    one = answers * (limit.contributions if limit.each is None else limit.each)
    lengths = []
    for name, array in value.items():
        flat = np.ravel(array).astype(np.float64)
        if not flat.size:
            continue
        most = _ROUNDING * (one + sd * _tail(limit.numbers))
        largest = float(np.abs(flat).max())
        if not largest <= most:
            _refuse(f"{what} is larger than {most:.6g} in a number of {name!r}")
        # Scaled first, though no number is large any more: there may be very small ones.
        lengths.append(largest and largest * float(np.linalg.norm(flat / largest)))
        if lengths[-1] > (most := _longest(whole, sd, flat.size)):
            _refuse(f"{what} is longer than {most:.6g} in {name!r}")
    if math.hypot(*lengths) > (most := limit.of_sum(answers, louder)):
        _refuse(f"{what} is longer than {most:.6g}")
    for sign in limit.signs:
        if sign.name in value:  # else whoever reads the answer says what is missing
            _check_sign(sign, np.ravel(value[sign.name]), what, answers, whole, sd)


def _check_sign(
    sign: Sign, flat: np.ndarray, what: str, answers: int, whole: float, sd: float
) -> None:
    # A float32 sum of positive terms may be off by this.
    rounding = (_ROUNDING - 1.0) * whole
    if sign.total is not None:
        most = _ROUNDING * (answers * sign.total + sd * math.sqrt(flat.size) * _TAIL)
        if flat.sum(dtype=np.float64) > most:
            _refuse(f"{what} counts more than {most:.6g} in {sign.name!r}")
    if not sign.side:
        least = _ROUNDING * sd * _tail(flat.size) + rounding
        if flat.min(initial=0.0) < -least:
            _refuse(f"{what} is below {-least:.6g} in a number of {sign.name!r}")
        return
    scale = triangle(sign.side)[2]
    if flat.size % len(scale):
        return  # of another shape, which whoever reads the answer refuses
    matrices = from_triangle(flat.reshape(-1, len(scale)).astype(np.float64) / scale, sign.side)
    edge = sd * (math.sqrt(2.0 * sign.side) + _tail(len(matrices)))
    least = _ROUNDING * edge + rounding
    np.einsum("...ii->...i", matrices)[...] += least
    try:
        np.linalg.cholesky(matrices)  # cheaper than eigenvalues, all of which must be positive now
    except np.linalg.LinAlgError:
        _refuse(f"{what} has an eigenvalue below {-least:.6g} in {sign.name!r}")


def _longest(contributions: float, sd: float, numbers: int) -> float:
    return _ROUNDING * (contributions + sd * (math.sqrt(numbers) + _TAIL))


def _tail(count: int) -> float:
    """Returns how many sds none of so many normal numbers exceeds."""
    return math.sqrt(_TAIL**2 + 2.0 * math.log(max(count, 1)))


def _refuse(found: str) -> None:
    raise errors.ImpossibleAnswer(
        f"{found}, expected what the declared records' clipped contributions and their noise can give",
        "does the site run the same study and the same version of fedvi, and is it who it should be?",
    )
