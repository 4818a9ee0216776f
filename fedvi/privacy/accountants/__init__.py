"""Defines the `Accountant` protocol, and lists all accountants.

`__all__` lists the factories that a budget may be checked with. Every bound here must be an upper bound
for all arguments.
"""

import math
from typing import Protocol, runtime_checkable

from fedvi.errors import PrivacyError, UnsupportedEvent
from fedvi.privacy.accountants.advanced import advanced
from fedvi.privacy.accountants.linear import linear
from fedvi.privacy.accountants.pld import pld
from fedvi.privacy.accountants.rdp import rdp
from fedvi.privacy.accountants.zcdp import zcdp
from fedvi.privacy.events import Event, Relation

__all__ = ["advanced", "linear", "pld", "rdp", "zcdp"]


def price(accountant: "Accountant", event: Event, delta: float) -> float:
    """Returns the smallest certified ε at ``delta``, infinite if no finite ε holds.

    Raises:
      UnsupportedEvent: the accountant does not know an atom of ``event``.
    """
    try:
        return accountant.epsilon(event, delta)
    except UnsupportedEvent:
        raise
    except PrivacyError:
        return math.inf


@runtime_checkable
class Accountant(Protocol):
    """Prices events under one neighbouring relation; stateless.

    Guarantee: for every event that it supports, every epsilon and every delta, the mechanisms
    that the event describes are (epsilon(event, delta), delta)-DP and (epsilon, delta(event,
    epsilon))-DP. Both are upper bounds. `supports` is asked before `epsilon` and `delta`, which
    raise `UnsupportedEvent` rather than guess.
    """

    @property
    def name(self) -> str:
        """The accountant's name in claims and messages."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation that it prices."""

    def supports(self, event: Event) -> bool:
        """Whether ``event`` can be priced."""

    def epsilon(self, event: Event, delta: float) -> float:
        """The smallest certified epsilon at ``delta``, in [0, 1); infinite without enough noise.

        Raises:
          ConfigError: ``delta`` is out of its range.
          UnsupportedEvent: this accountant does not know an atom of ``event``.
          PrivacyError: no finite epsilon holds, and only overflowing batches are the reason.
        """

    def delta(self, event: Event, epsilon: float) -> float:
        """The smallest certified delta at ``epsilon``, a finite number of 0 or more.

        Raises:
          ConfigError: ``epsilon`` is out of its range.
          UnsupportedEvent: this accountant does not know an atom of ``event``.
        """
