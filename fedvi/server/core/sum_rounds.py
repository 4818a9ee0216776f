"""Adds up the answers of rounds that publish only their sum (view "aggregate").

    answers of one round, whole numbers ─► exact sum ─► finish ─► equal parts, one for each client

All that is published, and all that the next tasks carry, is a function of the exact sum alone. Answers
are added as whole numbers, since the last bits of a floating-point sum depend on its terms. The factors
in the state are equal parts of the sum, and belong to no single client.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.whole_numbers import LARGEST, MASKED, SHARES, whole
from fedvi.privacy import masks, shares, top_up
from fedvi.privacy.sums import Sums
from fedvi.privacy.top_up import TopUp
from fedvi.typing import Eta
from fedvi.updates.base import Change, check_shapes

__all__ = ["Gather", "exact", "masked_words", "totals"]


class Gather(NamedTuple):
    """How answers are added up; public, and made of values that JSON can hold.

    Attributes:
      sums: how many must answer, and how many are assumed to collude.
      step: the step of the mechanism's grid, which the whole numbers count.
      shapes: of an answer's arrays, by name.
      bits: word length of masked answers; None if the server sees each answer.
      top_up: the layers of noise in masked answers that make up for missing sites.
    """

    sums: Sums
    step: float
    shapes: Mapping[str, tuple[int, ...]]
    bits: int | None = None
    top_up: TopUp = top_up.NONE

    @property
    def size(self) -> int:
        """How many numbers an answer holds."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def exact(gather: Gather, value: Mapping[str, np.ndarray], like: Eta, clients: int) -> Change:
    """Stores an answer as whole numbers in the layout of an η, until its round is complete.

    The result is not a change of a factor: only ``totals`` of a whole round gives one.

    Args:
      value: an answer's arrays, float64, whole numbers times the step.
      like: an η of the family, which has room for all of them.
      clients: M, the most answers in a sum.

    Raises:
      ProtocolError: an array has an unexpected name or shape, or a number is off the grid or too large
        for exact sums.
    """
    if gather.bits is not None:
        return _masked(gather, gather.bits, value, like, clients)
    numbers = whole(value, gather.shapes, gather.step)
    room = np.zeros(sum(leaf.size for leaf in tree.leaves(like)))
    if np.abs(numbers).max(initial=0.0) * clients >= LARGEST:
        raise errors.ProtocolError(
            f"an answer holds numbers whose sum over {clients} clients is beyond 2**53 steps"
        )
    room[: len(numbers)] = numbers
    return Change(tree.freeze(_shaped(room, like)))


def totals(
    gather: Gather,
    answers: list[Change],
    added: Sequence[bytes] = (),
    subtracted: Sequence[bytes] = (),
    surplus: Sequence[tuple[int, bytes]] = (),
) -> dict[str, np.ndarray]:
    """Adds up the answers of a round exactly, and returns the sum as one answer's arrays.

    Args:
      added, subtracted: keys of the mask streams left in the sum; see ``masks.opened``.
      surplus: (layer, its key) of each layer of noise in the sum that is to be taken off.

    Raises:
      ProtocolError: answers are masked, and their masks do not cancel; or the sum is beyond 2**53 steps.
    """
    flats = [
        np.concatenate([np.ravel(leaf) for leaf in tree.leaves(answer.delta)]) for answer in answers
    ]
    if gather.bits is None:
        sums = np.sum(flats, axis=0)
    else:
        sums = _unmasked(flats, gather.bits, added, subtracted)
        sums -= gather.top_up.total(surplus, len(sums))
    found, start = {}, 0
    for name in sorted(gather.shapes):
        shape = tuple(gather.shapes[name])
        count = math.prod(shape)
        found[name] = (sums[start : start + count] * gather.step).reshape(shape)
        start += count
    return found


def _masked(
    gather: Gather, bits: int, value: Mapping[str, np.ndarray], like: Eta, clients: int
) -> Change:
    """Stores masked words as 32-bit halves in float64, all in the first array of an η."""
    expected: dict[str, tuple[int, ...]] = {MASKED: (gather.size + masks.GUARD,)}
    if gather.sums.least_reporting < clients:
        expected[SHARES] = (clients, shares.SEALED_BYTES // 4)
    check_shapes(dict(value), expected)
    if SHARES in expected and value[SHARES].dtype != np.dtype("<i4"):
        # Shares are passed on by position; a site that could not read its own would stop.
        raise errors.ProtocolError(
            f"an answer's sealed shares have dtype {value[SHARES].dtype}, expected <i4",
            "do all sites have the same version of fedvi?",
        )
    words = value[MASKED]
    if words.dtype != np.dtype(f"<i{bits // 8}"):
        raise errors.ProtocolError(
            f"a masked answer has dtype {words.dtype}, expected <i{bits // 8}",
            "do all sites have the same version of fedvi?",
        )
    parts = iter([words.view("<u4").astype(np.float64)])
    return Change(tree.freeze(tree.map_leaves(lambda _: next(parts, np.zeros(0)), like)))


def _unmasked(
    flats: list[np.ndarray], bits: int, added: Sequence[bytes], subtracted: Sequence[bytes]
) -> np.ndarray:
    """Returns the sum of answers in the form of ``_masked``, as whole float64."""
    sums = masks.opened([_words(flat, bits) for flat in flats], bits, added, subtracted)
    if np.abs(sums).max(initial=0) >= LARGEST:
        raise errors.ProtocolError("a sum of masked answers is beyond 2**53 steps")
    return sums.astype(np.float64)


def masked_words(gather: Gather, answer: Change) -> np.ndarray:
    """Returns the words of a masked answer as its site sent them, from the form of ``exact``.

    Returns:
      [D + ``masks.GUARD``], int32 or int64.
    """
    assert gather.bits is not None
    flat = np.concatenate([np.ravel(leaf) for leaf in tree.leaves(answer.delta)])
    return _words(flat, gather.bits).view(f"<i{gather.bits // 8}")


def _words(flat: np.ndarray, bits: int) -> np.ndarray:
    return flat.astype("<u4").view(f"<u{bits // 8}")


def _shaped(flat: np.ndarray, like: Eta) -> Eta:
    start = 0

    def taken(leaf: Any) -> np.ndarray:
        nonlocal start
        start += leaf.size
        return flat[start - leaf.size : start].reshape(leaf.shape)

    return tree.map_leaves(taken, like)
