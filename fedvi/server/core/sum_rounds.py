"""Folds rounds of which only the sum is published, as the view "aggregate" asks for.

    answers of one round, whole numbers ─► exact sum ─► finish ─► equal parts, one for each client

All that is published, and all that the next tasks carry, is computed from the sum, bit for bit: answers
are added as whole numbers, since a sum of floats shows in its last bits what was added. So the factors
that a state holds are parts of the sum, and no client's own.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.inference.base import Change, check_shapes
from fedvi.privacy.sums import Sums
from fedvi.typing import Eta

__all__ = ["Gather", "exact", "totals"]

# Whole numbers up to here are float64, and so are their sums.
_WHOLE = 2**53


class Gather(NamedTuple):
    """How answers are added up; public, and values that JSON can hold.

    Attributes:
      sums: how many must answer, and how many are taken to collude.
      step: what one of the whole numbers is worth: that of the mechanism's grid.
      shapes: of an answer's arrays, by name.
    """

    sums: Sums
    step: float
    shapes: Mapping[str, tuple[int, ...]]


def exact(gather: Gather, value: Mapping[str, np.ndarray], like: Eta, clients: int) -> Change:
    """Writes an answer as whole numbers in the layout of an η, to wait for the others of its round.

    It is no change of a factor before ``totals`` has read the sum.

    Args:
      gather: how.
      value: an answer's arrays, float64, whole numbers times the step.
      like: an η of the family, which has room for all of them.
      clients: M, how many may be added up.

    Raises:
      ProtocolError: the arrays are others, or hold what is on no grid, or is too large for exact sums.
    """
    check_shapes(dict(value), dict(gather.shapes))
    leaves = tree.leaves(like)
    room = np.zeros(sum(leaf.size for leaf in leaves))
    flat = np.concatenate([np.ravel(value[name]) for name in sorted(gather.shapes)])
    whole = np.rint(flat / gather.step) + 0.0  # no negative zero
    # The product is what was sent: the same two factors give the same bits.
    if not np.array_equal(whole * gather.step, flat):
        raise errors.ProtocolError(
            "an answer holds numbers that are not on the grid of the study's noise",
            "do all sites have the same version of fedvi?",
        )
    if np.abs(whole).max(initial=0.0) * clients >= _WHOLE:
        raise errors.ProtocolError(
            f"an answer holds numbers whose sum over {clients} clients is beyond 2**53 steps"
        )
    room[: len(whole)] = whole
    return Change(tree.freeze(_shaped(room, like)))


def totals(gather: Gather, answers: list[Change]) -> dict[str, np.ndarray]:
    """Adds up the answers of a round, exactly, and returns the sum as one answer's arrays."""
    flats = [
        np.concatenate([np.ravel(leaf) for leaf in tree.leaves(answer.delta)]) for answer in answers
    ]
    whole = np.sum(flats, axis=0)
    found, start = {}, 0
    for name in sorted(gather.shapes):
        shape = tuple(gather.shapes[name])
        count = math.prod(shape)
        found[name] = (whole[start : start + count] * gather.step).reshape(shape)
        start += count
    return found


def _shaped(flat: np.ndarray, like: Eta) -> Eta:
    start = 0

    def taken(leaf: Any) -> np.ndarray:
        nonlocal start
        start += leaf.size
        return flat[start - leaf.size : start].reshape(leaf.shape)

    return tree.map_leaves(taken, like)
