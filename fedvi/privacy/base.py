"""What samplers and mechanisms are, and the values that go between them and a release."""

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from fedvi.privacy import events
from fedvi.typing import Key

__all__ = ["Batch", "Grid", "Mechanism", "Sampler", "Shift"]


class Shift(NamedTuple):
    """The largest L2 move of a total when one privacy unit changes, by relation.

    ``clip_norm`` is the unit of noise: a mechanism's noise has std noise_multiplier · clip_norm.
    """

    clip_norm: float
    add_remove: float
    substitute: float


class Grid(NamedTuple):
    """The multiples of one step on which totals and noise live; public and static.

    Attributes:
      step: g, what one unit of the integers is worth.
      bound: the largest squared L2 norm of one record's integers, ⌊(C / g)²⌋ of the exact C / g.
      tail: the largest absolute value of the noise in one coordinate, in steps.
      terms: how many noised totals may be added up; their sum must fit into the integers as well.
    """

    step: float
    bound: int
    tail: int
    terms: int = 1


@runtime_checkable
class Sampler(Protocol):
    """Picks the records of one step, and prices what a step on them costs."""

    @property
    def rate(self) -> float:
        """The probability that a record is in a batch; public."""

    @property
    def capacity(self) -> int:
        """The static number of rows of a batch; public."""

    def draw(self, key: Key, valid: Any) -> "Batch":
        """Draws a batch of ``capacity`` rows from the slots; ``valid``, bool, says where a record stands.

        There are as many slots as were declared, however many records there are.
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
      indices: which slots, int [B].
      mask: which of them hold a record that counts, bool [B].
      sampler: what drew them. B is at least its ``capacity``, and follows from public numbers alone: all
        sizes, limits and programs on the way to a release are made for B.
    """

    indices: Any
    mask: Any
    sampler: Sampler = dataclasses.field(metadata={"static": True})
