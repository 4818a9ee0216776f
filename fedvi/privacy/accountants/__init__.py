"""Defines what an accountant is, and lists all of them.

`__all__` lists the factories whose bounds a budget may be checked against. What is not an upper
bound everywhere does not belong here.
"""

from typing import Protocol, runtime_checkable

from fedvi.privacy.accountants.advanced import advanced
from fedvi.privacy.accountants.linear import linear
from fedvi.privacy.accountants.pld import pld
from fedvi.privacy.accountants.rdp import rdp
from fedvi.privacy.accountants.zcdp import zcdp
from fedvi.privacy.events import Event, Relation

__all__ = ["advanced", "linear", "pld", "rdp", "zcdp"]


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
        """The smallest certified epsilon at ``delta``; infinite when there is none."""

    def delta(self, event: Event, epsilon: float) -> float:
        """The smallest certified delta at ``epsilon``."""
