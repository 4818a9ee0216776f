"""Every record in every step: no subsampling, no amplification."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from fedvi.privacy import events
from fedvi.privacy.base import Batch, filled
from fedvi.privacy.sampling._rows import check_slots
from fedvi.typing import Key

__all__ = ["Full", "full"]


@dataclasses.dataclass(frozen=True)
class Full:
    """The whole shard; its event is the inner event itself."""

    max_records: int
    rate: ClassVar[float] = 1.0

    @property
    def capacity(self) -> int:
        """The static number of rows of a batch."""
        return self.max_records

    def draw(self, key: Key, valid: Any) -> Batch:
        """Returns all slots; ``key`` is not used.

        Args:
          valid: bool [max_records]; slots that hold no record are masked.

        Raises:
          PrivacyError: if ``valid`` has more entries than slots, or fewer.
        """
        check_slots(valid, self.max_records)
        return filled(
            Batch(jnp.arange(self.capacity, dtype=jnp.int32), jnp.asarray(valid, bool), self)
        )

    def event(self, inner: events.Event) -> events.Event:
        """Returns ``inner``."""
        return inner


def full(max_records: int) -> Full:
    """Returns the sampler that takes every record.

    Args:
      max_records: the declared largest number of records at any client.
    """
    return Full(max_records)
