"""Protocols of samplers and mechanisms, and the values that they exchange with a release."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from fedvi.privacy import events
from fedvi.typing import Key

__all__ = ["ROWS_TOGETHER", "Batch", "Grid", "Mechanism", "Sampler", "Shift", "filled"]

ROWS_TOGETHER = 64
"""Batches have a multiple of so many rows, see `filled`."""


class Shift(NamedTuple):
    """The L2 sensitivity of a total to one privacy unit, under each relation.

    A mechanism's noise has std noise_multiplier · ``clip_norm``.
    """

    clip_norm: float
    add_remove: float
    substitute: float

    def event(self, noised: Callable[..., events.Event]) -> events.Event:
        """Returns ``noised`` of the shifts in clip norms; unprotected if nothing is clipped."""
        if not math.isfinite(self.clip_norm):
            return events.Unprotected("a sum that is not clipped")
        return noised(
            add_remove=self.add_remove / self.clip_norm,
            substitute=self.substitute / self.clip_norm,
        )


class Grid(NamedTuple):
    """The grid of multiples of one step, on which totals and noise lie; public and static.

    Attributes:
      step: g, the spacing: integer 1 stands for the value g.
      bound: the largest squared L2 norm of one record's integers, ⌊(C / g)²⌋ of the exact C / g.
      tail: the largest absolute value of the noise in one coordinate, in steps.
      terms: how many noised totals may be added up; their sum must fit into the integer dtype too.
    """

    step: float
    bound: int
    tail: int
    terms: int = 1


@runtime_checkable
class Sampler(Protocol):
    """Picks the records of one step, and returns the accounting event of that step."""

    @property
    def rate(self) -> float:
        """The probability that a record is in a batch; public."""

    @property
    def capacity(self) -> int:
        """The most records that a batch may hold; static and public."""

    def draw(self, key: Key, valid: Any) -> "Batch":
        """Draws a batch from the slots: ``capacity`` rows, then `filled`.

        ``valid`` is a bool for each slot: whether it holds a record. The number of slots is the declared
        one, whatever the number of records.
        """

    def event(self, inner: events.Event) -> events.Event:
        """Returns the event of running ``inner`` on one batch."""


@runtime_checkable
class Mechanism(Protocol):
    """Adds noise to a bounded total."""

    @property
    def noise_multiplier(self) -> float:
        """Noise std ÷ clip norm; public."""

    @property
    def mark(self) -> str:
        """Empty if the noise is what the accountant assumes; otherwise printed beside every claim."""

    def grid(self, clip_norm: float) -> Grid | None:
        """Returns the grid of totals clipped to ``clip_norm``; None for noise in floating point."""

    def perturb(self, key: Key, total: Any, clip_norm: float) -> Any:
        """Returns the noised total: total + perturb(key, 0) for every total, integers on a grid."""

    def event(self, shift: Shift) -> events.Event:
        """Returns the event of one release of a total with this shift."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows picked by a sampler; masked rows do not count.

    Attributes:
      indices: the slots, int [B].
      mask: which of them hold a record that counts, bool [B].
      sampler: what drew them. B is at least its ``capacity`` and follows from public numbers alone,
        because every size, limit and program on the way to a release depends on B.
    """

    indices: Any
    mask: Any
    sampler: Sampler = dataclasses.field(metadata={"static": True})


def filled(batch: Batch, multiple: int = ROWS_TOGETHER) -> Batch:
    """Returns the batch padded with masked rows to a multiple of ``multiple``, itself one of 64.

    Every sampler's ``draw`` ends here, so that no solver computes on batches without whole groups of rows.
    Compiled programs process rows eight or more at a time and left-over rows differently, which gives a
    record other last bits there. A record that is removed may move others to such rows, and the privacy
    proof needs their contributions to stay the same. That all rows of whole groups are treated alike is
    not promised by a compiler either: ``fedvi.inference.rows_alike`` checks it.
    """
    room = -batch.mask.shape[0] % multiple
    if not room:
        return batch
    return Batch(jnp.pad(batch.indices, (0, room)), jnp.pad(batch.mask, (0, room)), batch.sampler)
