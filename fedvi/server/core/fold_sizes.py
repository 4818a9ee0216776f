"""Bounds the numbers of a fold, to show without a trial fold that it cannot fail numerically.

A trial fold for each answer would visit all factors each time. The matrices of a fold contain the
prior's precision J_0, or are lifted to 1e-3 of it (``project``). Let a be the smallest eigenvalue of J_0,
and let S bound every number that precisions are computed from. Then every matrix that is decomposed has
eigenvalues between 1e-3 a and 2·D·S. Coordinates spread them further by κ², with κ the condition number
of the map to the coordinates. If D²·S·κ² is at most 1e10·a, the ratio of smallest to largest eigenvalue is
above 5e-14·D: five times what ``is_proper`` asks for, and hundreds of times what float64 needs to decompose
a matrix of D ≤ 1,000. Proof: docs/proofs/fold_sizes.md.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.base import DenseGaussian
from fedvi.expfam.mapped_arrays import windows
from fedvi.server.core.kept import Same
from fedvi.typing import Eta

__all__ = [
    "Weighed",
    "cannot_fail",
    "check_size",
    "largest",
    "noted",
    "strictly",
    "with_answer",
]

_LARGEST = 1e30
_MOST = 1e10


class Weighed(NamedTuple):
    """The sum of the largest absolute numbers of the answers that wait."""

    answers: tuple[Any, ...]
    size: float


def check_size(eta: Eta, what: str) -> None:
    """Refuses natural parameters so large that computations with them might overflow float64.

    With 1e4 answers in a fold and 1e6 in a run, sums stay below 1e36. The posterior handed out has
    precisions of at least 1e-30 (``is_proper``). A full matrix of D ≤ 1e3, scaled to a unit diagonal, has
    eigenvalues of at least 1e-14 D: 1e-41 unscaled. So a mean is below 1e79, its change by a fold, in
    units of sds, is below 1e137, and the sum of squares of that is far below 1e308.

    Args:
      eta: finite natural parameters.
      what: names them in the message, which shows none of the numbers.

    Raises:
      ProtocolError: a number is beyond 1e30.
    """
    if largest(eta) > _LARGEST:
        raise errors.ProtocolError(
            f"{what} holds numbers beyond {_LARGEST:g} in size",
            "are the columns scaled, does clip_norm bound anything, and is the client who it should be?",
        )


@contextlib.contextmanager
def strictly(what: str) -> Iterator[None]:
    """Refuses arithmetic that leaves the range of float64; the message shows no number.

    Raises:
      ProtocolError: numbers left the range, or a matrix was singular.
    """
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    # A matrix that cannot be decomposed is a ValueError.
    except (ArithmeticError, ValueError) as error:
        raise errors.ProtocolError(
            f"{what}: its numbers are too large, or too far apart, for 64-bit arithmetic",
            "are the columns scaled, does clip_norm bound anything, and is the client who it should be?",
        ) from error


def with_answer(state: Any, delta: Eta) -> float:
    """Returns the sum of the largest absolute numbers of the waiting answers and of one more, ``delta``."""
    weighed = state.presence.weighed
    if weighed is None or weighed.answers is not state.answers:
        return sum((largest(answer.change.delta) for answer in state.answers), largest(delta))
    return float(weighed.size + largest(delta))


def noted(state: Any, size: float) -> Any:
    """Stores the size of the waiting answers in the state, for the next answer."""
    weighed = Weighed(state.answers, size)
    return state._replace(presence=state.presence._replace(weighed=weighed))


def cannot_fail(spec: Any, state: Any, size: float) -> bool:
    """Whether any answers of this total size can be folded into the state.

    Args:
      size: from ``with_answer``.
    """
    if not _is_dense(Same(spec.family)):
        return False
    # Sum of the sites' factors = posterior − prior − exact factors, and those may exceed the posterior.
    there = size + _largest(Same(state.posterior)) + 2.0 * _largest(Same(spec.prior))
    if 0 < len(spec.headers) < len(spec.clients):
        exact = (name for name in spec.clients if name not in spec.headers)
        there += 2.0 * sum(largest(state.factors[name]) for name in exact)
    stretched = 1.0
    if state.standing is not None:
        there += largest(state.standing.curvature)
        if state.standing.coordinates is not None:
            stretched = _condition(Same(state.standing.coordinates)) ** 2
    return bool(spec.family.size**2 * there * stretched <= _MOST * _least(Same(spec.prior)))


def largest(eta: Eta) -> float:
    """Returns the largest size of a number."""
    # An array of absolute values would be as large as the leaf.
    pieces = (piece for leaf in tree.leaves(eta) for (piece,) in windows(leaf))
    return max(
        (float(max(-piece.min(initial=0.0), piece.max(initial=0.0))) for piece in pieces),
        default=0.0,
    )


# For the prior and the posterior of the moment, which each answer of a round is looked at beside.
@functools.lru_cache(maxsize=2)
def _largest(same: Same) -> float:
    return largest(same.value)


@functools.lru_cache(maxsize=8)
def _is_dense(same: Same) -> bool:
    return isinstance(same.value, DenseGaussian)


@functools.lru_cache(maxsize=8)
def _least(same: Same) -> float:
    """Returns the smallest eigenvalue of a proper prior's precision."""
    precision = np.asarray(same.value.J)
    if precision.ndim == 1:
        return float(precision.min())
    return float(np.linalg.eigvalsh(precision)[0])


@functools.lru_cache(maxsize=8)
def _condition(same: Same) -> float:
    """Returns the condition number of the map from columns to coordinates."""
    return float(np.linalg.cond(same.value.columns(np.eye(len(same.value.centre)))))
