"""Defines what an accountant is, and lists all of them.

`__all__` lists the factories whose bounds a budget may be checked against. What is not an upper
bound everywhere does not belong here.
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
    """Returns the smallest certified ε at ``delta``, infinite where none is finite.

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
        """What claims and messages call this accountant."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation that it prices."""

    def supports(self, event: Event) -> bool:
        """Whether ``event`` can be priced."""

    def epsilon(self, event: Event, delta: float) -> float:
        """The smallest certified epsilon at ``delta``, in [0, 1); infinite when noise gives none.

        Raises:
          ConfigError: ``delta`` is out of its range.
          UnsupportedEvent: this accountant does not know an atom of ``event``.
          PrivacyError: no epsilon is finite, because of overflowing batches and nothing else.
        """

    def delta(self, event: Event, epsilon: float) -> float:
        """The smallest certified delta at ``epsilon``, a finite number of 0 or more.

        Raises:
          ConfigError: ``epsilon`` is out of its range.
          UnsupportedEvent: this accountant does not know an atom of ``event``.
        """
